"""Admits HTTP requests: finds out who asks and may ask, before a handler runs or a body is read.

The bodies of requests about sinks name topics, so these are read when it is known who asks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from starlette.requests import Request

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import (
    AuthorizationError,
    BrokerError,
    InvalidNameError,
    no_sink,
)
from daybook.broker.security.audit import Audit
from daybook.broker.security.authentication import Authentication, of_header
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.identity import CALLER, ORIGINAL_PRINCIPAL, Caller, on_behalf
from daybook.broker.security.resources import CLUSTER, Resource, of_namespace, of_topic
from daybook.broker.security.rights import Right
from daybook.wire.errors import MalformedError
from daybook.wire.http import CERTIFICATE
from daybook.wire.topics import TopicName, check_namespace, check_tenant, url_decode
from daybook.wire.transport import PeerCertificate

Targets: TypeAlias = Callable[[], Awaitable[Sequence[Resource]]]


class Access:
    """One instance per broker.  Without authentication everybody may do everything."""

    def __init__(
        self,
        config: BrokerConfig,
        authentication: Authentication | None,
        authorization: Authorization | None,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._config = config
        self._authentication = authentication
        self._authorization = authorization

    async def admit(
        self,
        request: Request,
        right: Right,
        targets: Targets | None = None,
        *,
        reads_messages: bool = False,
    ) -> None:
        """Find out who asks, and keep it in `CALLER` for what is done for the request.

        The right is needed on the object that the path names, or on all that `targets` returns.
        Raise AuthenticationError, or AuthorizationError if a right lacks; NotFoundError for a sink
        that is hidden from those who lack it.
        """
        if self._authentication is None or right is Right.OPEN:
            return
        caller: Caller | None = None
        hidden = ""
        try:
            caller = await self._caller(self._authentication, request)
            CALLER.set(caller)
            if self._authorization is not None and self._authorization.on:
                found = (
                    [target_of(request.scope["path"], request.path_params)]
                    if targets is None
                    else await targets()
                )
                for target in found:
                    hidden = target.sink if target.hidden else ""
                    await self._authorization.check(caller, right, target)
        except BrokerError as error:
            self._note(request, caller, error)
            if hidden and isinstance(error, AuthorizationError):
                raise no_sink(hidden) from None
            raise
        if request.method not in ("GET", "HEAD") or reads_messages:
            self._note(request, caller)

    def _note(
        self, request: Request, caller: Caller | None, error: BrokerError | None = None
    ) -> None:
        if self._audit is not None:
            client = request.client
            peer = "" if client is None else f"{client.host}:{client.port}"
            self._audit.note(
                request.method,
                peer,
                caller,
                request.scope["path"],
                error,
                with_credentials="Authorization" in request.headers
                or _certificate(request) is not None,
            )

    async def _caller(self, authentication: Authentication, request: Request) -> Caller:
        headers = request.headers
        certificate = _certificate(request)
        credentials = of_header(
            headers.get("Authorization", ""),
            headers.get("X-Pulsar-Auth-Method-Name", ""),
            None if certificate is None else certificate.common_name,
        )
        identity = await authentication.identify(credentials)
        # A super user, such as another broker, lends none of its rights by naming a role.
        proxies_only = identity.role not in self._config.super_users
        original = _original(headers.get(ORIGINAL_PRINCIPAL, ""))
        return on_behalf(
            identity, original, proxies=self._config.proxy_roles, proxies_only=proxies_only
        )


def _certificate(request: Request) -> PeerCertificate | None:
    found: PeerCertificate | None = request.scope.get("state", {}).get(CERTIFICATE)
    return found


def _original(header: str) -> str:
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        raise AuthorizationError("the original principal is not a role") from None


def domain_of(path: str) -> str:
    """Return the domain of the topics that a path names.

    Only the place in the path tells: a tenant may have the name of a domain.
    """
    parts = path.split("/")
    place = 4 if parts[1:2] == ["lookup"] else 3
    return "non-persistent" if parts[place : place + 1] == ["non-persistent"] else "persistent"


def target_of(path: str, params: Mapping[str, str]) -> Resource:
    """Return the object that a path names.  Raise InvalidNameError."""
    if "tenant" not in params:
        return CLUSTER
    try:
        tenant = url_decode(params["tenant"])
        if "namespace" not in params:
            return Resource(check_tenant(tenant))
        namespace = check_namespace(f"{tenant}/{url_decode(params['namespace'])}")
        subscription = url_decode(params["subscription"]) if "subscription" in params else None
        if "topic" not in params:
            return of_namespace(namespace, subscription)
        topic = TopicName.parse(f"{domain_of(path)}://{namespace}/{url_decode(params['topic'])}")
    except MalformedError as error:
        raise InvalidNameError(str(error)) from None
    return of_topic(topic, subscription)
