"""The admin client: topics, subscriptions and namespaces, over the REST interface of brokers.

    admin = daybook.admin.Admin("http://localhost:8080")
    await admin.create_topic("orders", partitions=4)
    print(await admin.stats("orders-partition-0"))

Any broker takes any request, and redirects it if another broker has to carry it out.  A request
that did not reach a broker goes to the next one.  A request that was sent and not answered is in
doubt; only GET requests are sent again.  Answers are Pulsar's JSON, as Python objects.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random, SystemRandom
from typing import Any, TypeAlias, cast
from urllib.parse import urlencode, urlsplit

import trio

from daybook.clients.python.admin_rights import AdminRights, namespace_path, topic_path
from daybook.clients.python.arguments import check_url, topic_name
from daybook.clients.python.credentials import Basic, Credentials, Token
from daybook.clients.python.errors import (
    AdminError,
    AdminInDoubtError,
    BrokerError,
    ConnectionLostError,
    RequestTimedOutError,
    TlsError,
    UnavailableError,
    WrongProtocolError,
    admin_error,
)
from daybook.clients.python.http import HttpResponse, http_request
from daybook.clients.python.message_id import LATEST, MessageId
from daybook.clients.python.start_position import parse_start
from daybook.clients.python.stored_entry import StoredEntry
from daybook.clients.python.tls import TlsOptions, is_encrypted, network_for
from daybook.wire.errors import ConnectionLostError as StreamLostError
from daybook.wire.messages.registry import signed
from daybook.wire.tcp import TcpNetwork
from daybook.wire.topics import url_encode
from daybook.wire.transport import Network

Json: TypeAlias = Any
_PORT, _TLS_PORT = 8080, 8443
_OWNER_PATIENCE_S = 10.0  # A broker that died is replaced in a second, a silent host later.
_OWNER_PAUSE_S = 0.1
_REDIRECTS_MAX = 8
_SHOWN_CHARS = 100
_NOT_FOUND = 404
_REDIRECTS = (301, 302, 307, 308)


class Admin(AdminRights):
    """`admin_url` names brokers: `http://host:port`, or several hosts with commas between.

    `https://host:port` is for TLS, and `tls` says whom the client trusts.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        token: Token | None = None,
        basic: Basic | None = None,
        tls: TlsOptions | None = None,
        network: Network | None = None,
        rng: Random | None = None,
        timeout_s: float = 60.0,  # for one request, to all brokers together
    ) -> None:
        check_url("admin_url", admin_url)
        self._credentials = Credentials(token, basic)
        self._addresses = parse_admin_url(admin_url)
        rng = rng or Random(SystemRandom().getrandbits(64))  # noqa: S311
        self._first = rng.randrange(len(self._addresses))
        self._encrypted = is_encrypted(admin_url)
        self._network = network_for(admin_url, tls, network or TcpNetwork())
        self._timeout_s = timeout_s
        self.trouble: BrokerError | None = None  # the error of the last broker that failed

    # -- tenants and namespaces

    async def tenants(self) -> list[str]:
        return _texts(await self._get("/admin/v2/tenants"))

    async def create_tenant(
        self, tenant: str, clusters: list[str], admins: Sequence[str] = ()
    ) -> None:
        body = {"adminRoles": list(admins), "allowedClusters": clusters}
        await self._do("PUT", f"/admin/v2/tenants/{url_encode(tenant)}", body)

    async def delete_tenant(self, tenant: str) -> None:
        await self._do("DELETE", f"/admin/v2/tenants/{url_encode(tenant)}")

    async def clusters(self) -> list[str]:
        return _texts(await self._get("/admin/v2/clusters"))

    async def namespaces(self, tenant: str = "public") -> list[str]:
        return _texts(await self._get(f"/admin/v2/namespaces/{url_encode(tenant)}"))

    async def create_namespace(self, namespace: str) -> None:
        await self._do("PUT", f"/admin/v2/namespaces/{namespace_path(namespace)}")

    async def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete a namespace; with `force`, its topics and their messages, too."""
        path = f"/admin/v2/namespaces/{namespace_path(namespace)}"
        await self._do("DELETE", path, query={"force": True} if force else None)

    async def policies(self, namespace: str) -> Json:
        return await self._get(f"/admin/v2/namespaces/{namespace_path(namespace)}")

    async def policy(self, namespace: str, name: str) -> Json:
        """Return what a namespace says about a policy; None if it says nothing.

        `name` is that of Pulsar's admin REST, such as `messageTTL`.
        """
        return await self._get(f"/admin/v2/namespaces/{namespace_path(namespace)}/{name}")

    async def set_policy(
        self, namespace: str, name: str, value: Json, *, kind: str | None = None
    ) -> None:
        """Set a policy of a namespace; None removes it.

        `value` is the JSON that Pulsar's admin REST takes.  `kind` is the type of a backlog quota.
        """
        path = f"/admin/v2/namespaces/{namespace_path(namespace)}/{name}"
        await self._set_policy(path, value, kind)

    async def topic_policy(self, topic: str, name: str, *, applied: bool = False) -> Json:
        """Return what a topic itself says about a policy, or with `applied` what counts for it."""
        return await self._get(f"{topic_path(topic)}/{name}", {"applied": applied})

    async def set_topic_policy(
        self, topic: str, name: str, value: Json, *, kind: str | None = None
    ) -> None:
        """Set a policy of a topic and all its partitions, like `set_policy`."""
        await self._set_policy(f"{topic_path(topic)}/{name}", value, kind)

    async def _set_policy(self, path: str, value: Json, kind: str | None) -> None:
        target = path if kind is None else f"{path}?backlogQuotaType={kind}"
        await (self._do("DELETE", target) if value is None else self._do("POST", target, value))

    async def set_retention(self, namespace: str, *, minutes: int, megabytes: int) -> None:
        """Set how long acknowledged messages are kept; -1 keeps them forever."""
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        await self._do("POST", f"/admin/v2/namespaces/{namespace_path(namespace)}/retention", body)

    async def set_deduplication(self, namespace: str, enabled: bool | None) -> None:
        """Store each message once in the topics of a namespace, even if it is sent again.

        None leaves it to the setting of the brokers.
        """
        path = f"/admin/v2/namespaces/{namespace_path(namespace)}/deduplication"
        await (self._do("DELETE", path) if enabled is None else self._do("POST", path, enabled))

    async def bundles(self, namespace: str) -> Json:
        return await self._get(f"/admin/v2/namespaces/{namespace_path(namespace)}/bundles")

    async def unload_namespace(self, namespace: str) -> None:
        await self._do("PUT", f"/admin/v2/namespaces/{namespace_path(namespace)}/unload")

    # -- topics

    async def topics(
        self,
        namespace: str = "public/default",
        *,
        persistent: bool = True,
        after: str = "",
        limit: int = 0,
    ) -> list[str]:
        """Return the full names of the persistent topics, with each partition.

        With `limit`, return at most so many; `after` is the last name of the page before.
        With `persistent` False, return those of the topics that store nothing and are in use.
        """
        domain = "persistent" if persistent else "non-persistent"
        path = f"/admin/v2/{domain}/{namespace_path(namespace)}"
        page = {"after": after, "limit": str(limit or "")}
        query = urlencode({name: value for name, value in page.items() if value})
        return _texts(await self._get(f"{path}?{query}" if query else path))

    async def partitioned_topics(self, namespace: str = "public/default") -> list[str]:
        return _texts(
            await self._get(f"/admin/v2/persistent/{namespace_path(namespace)}/partitioned")
        )

    async def create_topic(
        self, topic: str, *, partitions: int = 0, properties: dict[str, str] | None = None
    ) -> None:
        """Create a topic; with `partitions`, a partitioned one."""
        if not partitions:
            await self._do("PUT", topic_path(topic), properties)
        elif properties:
            new = {"partitions": partitions, "properties": properties}
            await self._do("PUT", f"{topic_path(topic)}/partitions", new)
        else:
            await self._do("PUT", f"{topic_path(topic)}/partitions", partitions)

    async def topic_properties(self, topic: str) -> dict[str, str]:
        return cast("dict[str, str]", await self._get(f"{topic_path(topic)}/properties"))

    async def set_topic_properties(self, topic: str, properties: dict[str, str]) -> None:
        """Set properties of a topic; those with other names stay."""
        await self._do("PUT", f"{topic_path(topic)}/properties", properties)

    async def remove_topic_property(self, topic: str, name: str) -> None:
        """Remove a property of a topic, if it is there."""
        query = urlencode({"key": name})
        await self._do("DELETE", f"{topic_path(topic)}/properties?{query}")

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned."""
        return _integer(await self._get(f"{topic_path(topic)}/partitions"), "partitions")

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a partitioned topic to `partitions`."""
        await self._do("POST", f"{topic_path(topic)}/partitions", partitions)

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic; with `force`, even if it has producers and subscriptions."""
        path = (
            f"{topic_path(topic)}/partitions" if await self.partitions(topic) else topic_path(topic)
        )
        await self._do("DELETE", path, query={"force": force})

    async def unload_topic(self, topic: str) -> None:
        """Have the broker close a topic; it is opened again when a client uses it."""
        await self._do("PUT", f"{topic_path(topic)}/unload")

    async def deduplication(self, topic: str) -> bool:
        """Return True if a topic stores each message once, even if it is sent again."""
        return (
            await self._get(f"{topic_path(topic)}/deduplicationEnabled", {"applied": True}) is True
        )

    async def set_topic_deduplication(self, topic: str, enabled: bool | None) -> None:
        """Override, for one topic, what its namespace says about deduplication.

        None leaves it to the namespace.  Producers and consumers of the topic attach again.
        """
        path = f"{topic_path(topic)}/deduplicationEnabled"
        await (self._do("DELETE", path) if enabled is None else self._do("POST", path, enabled))

    async def compact(self, topic: str) -> None:
        """Start the compaction of a topic, or of all its partitions.

        Raise ConflictError if one is under way.
        """
        await self._do("PUT", f"{topic_path(topic)}/compaction")

    async def compaction(self, topic: str) -> Json:
        """Return the state of the last compaction: its `status`, and its `lastError` if it failed.

        The status is NOT_RUN, RUNNING, SUCCESS or ERROR.
        """
        return await self._get(f"{topic_path(topic)}/compaction")

    async def terminate_topic(self, topic: str) -> MessageId:
        """Have a topic take no messages any more; return the id of its last message."""
        return _message_id(await self._do("POST", f"{topic_path(topic)}/terminate"))

    async def stats(self, topic: str) -> Json:
        """Return the statistics of a topic; for a partitioned one the sum, and `partitions`."""
        if await self._is_partitioned(topic):
            query = {"perPartition": True}
            return await self._get(f"{topic_path(topic)}/partitioned-stats", query)
        return await self._get(f"{topic_path(topic)}/stats")

    async def internal_stats(self, topic: str) -> Json:
        """Return the ledgers and cursors of a topic."""
        if await self._is_partitioned(topic):
            return await self._get(f"{topic_path(topic)}/partitioned-internalStats")
        return await self._get(f"{topic_path(topic)}/internalStats")

    async def last_message_id(self, topic: str) -> MessageId:
        return _message_id(await self._get(f"{topic_path(topic)}/lastMessageId"))

    async def message_id_at(self, topic: str, publish_time_ms: int) -> MessageId:
        """Return the first message that was published at a time or later; the end if none was."""
        return _message_id(await self._get(f"{topic_path(topic)}/messageid/{publish_time_ms}"))

    async def message_id_of_offset(self, topic: str, offset: int) -> MessageId:
        """Return the message with an offset.  Raise NotFoundError if the topic has none."""
        query = urlencode({"index": offset})
        return _message_id(await self._get(f"{topic_path(topic)}/getMessageIdByIndex?{query}"))

    async def lookup(self, topic: str) -> Json:
        """Return the URLs of the broker that serves a topic."""
        name = topic_name(topic)
        return await self._get(
            f"/lookup/v2/topic/{name.domain}/{namespace_path(name.namespace)}/{name.encoded}"
        )

    # -- subscriptions

    async def subscriptions(self, topic: str) -> list[str]:
        return _texts(await self._get(f"{topic_path(topic)}/subscriptions"))

    async def create_subscription(
        self, topic: str, subscription: str, *, start: MessageId | str = LATEST
    ) -> None:
        """Create a subscription that starts at `earliest`, `latest` or a message id."""
        await self._do("PUT", _subscription(topic, subscription), _place(start))

    async def delete_subscription(
        self, topic: str, subscription: str, *, force: bool = False
    ) -> None:
        await self._do("DELETE", _subscription(topic, subscription), query={"force": force})

    async def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge all messages of a subscription."""
        await self._do("POST", f"{_subscription(topic, subscription)}/skip_all")

    async def reset_subscription(
        self, topic: str, subscription: str, start: MessageId | str
    ) -> None:
        """Move a subscription to `earliest`, `latest` or a message id.

        Its consumers resume there.
        """
        await self._do("POST", f"{_subscription(topic, subscription)}/resetcursor", _place(start))

    async def reset_subscription_to_time(
        self, topic: str, subscription: str, publish_time_ms: int
    ) -> None:
        path = f"{_subscription(topic, subscription)}/resetcursor/{publish_time_ms}"
        await self._do("POST", path)

    async def skip_messages(
        self, topic: str, subscription: str, count: int, *, dry_run: bool = False
    ) -> Json:
        """Acknowledge the next messages of a subscription; of each partition, if there are any.

        With `dry_run`, return what would be acknowledged, and change nothing.
        """
        return await self._clear(f"{_subscription(topic, subscription)}/skip/{count}", dry_run)

    async def clear_backlog(self, topic: str, subscription: str, *, dry_run: bool = False) -> Json:
        """Acknowledge all messages of a subscription.  `dry_run` as for `skip_messages`."""
        return await self._clear(f"{_subscription(topic, subscription)}/skip_all", dry_run)

    async def expire_messages(
        self, topic: str, subscription: str, seconds: int, *, dry_run: bool = False
    ) -> Json:
        """Acknowledge messages that are older than `seconds`.  `dry_run` as for `skip_messages`."""
        path = f"{_subscription(topic, subscription)}/expireMessages/{seconds}"
        return await self._clear(path, dry_run)

    async def _clear(self, path: str, dry_run: bool) -> Json:
        return await self._do("POST", path, query={"dryRun": True} if dry_run else None)

    async def analyze_backlog(self, topic: str, subscription: str) -> Json:
        """Return how many messages, entries and bytes a subscription has not acknowledged."""
        return await self._do("POST", f"{_subscription(topic, subscription)}/analyzeBacklog")

    async def peek(self, topic: str, subscription: str, number: int = 1) -> StoredEntry:
        """Return the entry with that number, from 1, among those that are not acknowledged."""
        return await self._entry(f"{_subscription(topic, subscription)}/position/{number}", topic)

    async def examine(
        self, topic: str, number: int = 1, *, from_earliest: bool = False
    ) -> StoredEntry:
        """Return the entry with that number, from 1, from the end of a topic or its beginning."""
        end = "earliest" if from_earliest else "latest"
        query = urlencode({"initialPosition": end, "messagePosition": number})
        return await self._entry(f"{topic_path(topic)}/examinemessage?{query}", topic)

    async def stored_entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """Return an entry of a topic.  Raise NotFoundError if the topic has none."""
        return await self._entry(f"{topic_path(topic)}/ledger/{ledger_id}/entry/{entry_id}", topic)

    async def _entry(self, target: str, topic: str) -> StoredEntry:
        response = await self._request("GET", target, None)
        return StoredEntry.of(response.headers, response.body, topic_name(topic).partition)

    async def subscription_properties(self, topic: str, subscription: str) -> dict[str, str]:
        return cast(
            "dict[str, str]", await self._get(f"{_subscription(topic, subscription)}/properties")
        )

    async def set_subscription_properties(
        self, topic: str, subscription: str, properties: dict[str, str]
    ) -> None:
        """Replace the properties of a subscription."""
        await self._do("PUT", f"{_subscription(topic, subscription)}/properties", properties)

    async def truncate_topic(self, topic: str) -> None:
        """Acknowledge everything for all subscriptions of a topic, and drop what is stored."""
        await self._do("DELETE", f"{topic_path(topic)}/truncate")

    async def trim_topic(self, topic: str) -> None:
        """Drop what neither subscriptions nor retention need, without waiting for the broker."""
        await self._do("POST", f"{topic_path(topic)}/trim")

    async def explain_topic(self, topic: str) -> Json:
        """Return what a topic is doing at its broker.  The question does not load the topic."""
        return await self._get(f"{topic_path(topic)}/explain")

    async def explain_subscription(self, topic: str, subscription: str) -> Json:
        """Return why a subscription delivers nothing now: a summary, and all blockers."""
        return await self._get(f"{_subscription(topic, subscription)}/explain")

    # -- schemas

    async def schema(self, topic: str, version: int | None = None) -> Json:
        """Return a version of the schema of a topic, or the last one.

        Raise NotFoundError if the topic has no schema, or no such version.
        """
        path = f"{_schemas(topic)}/schema"
        return await self._get(path if version is None else f"{path}/{version}")

    async def schemas(self, topic: str) -> Json:
        """Return the versions of the schema of a topic."""
        found: Json = await self._get(f"{_schemas(topic)}/schemas")
        return found["getSchemaResponses"]

    async def add_schema(
        self, topic: str, type_: str, definition: str, properties: dict[str, str] | None = None
    ) -> int:
        """Add a schema, if it is compatible; return its version, or that of the same schema."""
        payload = {"type": type_, "schema": definition, "properties": properties or {}}
        found: Json = await self._do("POST", f"{_schemas(topic)}/schema", payload)
        version: int = found["version"]["version"]
        return version

    async def check_schema(
        self, topic: str, type_: str, definition: str, properties: dict[str, str] | None = None
    ) -> Json:
        """Return if a schema may be added, by which strategy, and the reason if it may not."""
        payload = {"type": type_, "schema": definition, "properties": properties or {}}
        return await self._do("POST", f"{_schemas(topic)}/compatibility", payload)

    async def delete_schema(self, topic: str, *, force: bool = False) -> int:
        """Delete the schema of a topic; with `force`, all versions.  Return the last version."""
        found: Json = await self._do("DELETE", f"{_schemas(topic)}/schema", query={"force": force})
        version: int = found["version"]
        return version

    # -- brokers

    async def brokers(self) -> list[str]:
        return _texts(await self._get("/admin/v2/brokers"))

    async def leader_broker(self) -> Json:
        return await self._get("/admin/v2/brokers/leaderBroker")

    async def check_health(self) -> None:
        """Raise BrokerError if a broker reports that it is not healthy."""
        await self._get("/admin/v2/brokers/health")

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        query: Mapping[str, bool | str] | None = None,
    ) -> Json:
        """Return the JSON of any other request of the REST, such as `GET`, `/admin/v2/brokers`."""
        return await self._do(method, path, body, query)

    # -- requests

    async def _is_partitioned(self, topic: str) -> bool:
        return topic_name(topic).partition < 0 and await self.partitions(topic) > 0

    async def _get(self, path: str, query: dict[str, bool] | None = None) -> Json:
        return await self._do("GET", path, query=query)

    async def _do(
        self,
        method: str,
        path: str,
        body: Json = None,
        query: Mapping[str, bool | str] | None = None,
    ) -> Json:
        target = path
        if query:
            texts = {
                name: value if isinstance(value, str) else str(value).lower()
                for name, value in query.items()
            }
            target += "?" + urlencode(texts)
        data = None if body is None else json.dumps(body).encode()
        return _parsed((await self._request(method, target, data)).body)

    async def _request(self, method: str, target: str, data: bytes | None) -> HttpResponse:
        """Ask the brokers, again while they name an owner that is gone: another one follows it."""
        patience = trio.current_time() + min(_OWNER_PATIENCE_S, self._timeout_s)
        while True:
            try:
                return await self._ask_each(method, target, data)
            except _OwnerGoneError as error:
                if trio.current_time() >= patience:
                    raise UnavailableError(str(error)) from error
            await trio.sleep(_OWNER_PAUSE_S)

    async def _ask_each(self, method: str, target: str, data: bytes | None) -> HttpResponse:
        """Ask one broker after the other, as long as no request can be carried out twice."""
        failures: list[BrokerError] = []
        deadline = trio.current_time() + self._timeout_s
        for index in range(len(self._addresses)):
            host, port = self._addresses[(self._first + index) % len(self._addresses)]
            # A silent broker must leave time to ask the others; only GET goes to several.
            share = len(self._addresses) - index if method == "GET" else 1
            timeout_s = max(0.0, deadline - trio.current_time()) / share
            try:
                response = await self._ask(host, port, method, target, data, timeout_s)
                check_response(response, f"{host}:{port}")
                return response
            except (UnavailableError, WrongProtocolError, TlsError) as error:
                failures.append(error)
            except (ConnectionLostError, RequestTimedOutError) as error:
                if method != "GET":
                    raise
                failures.append(error)
            self.trouble = failures[-1]
        if len(failures) > 1:
            gone = any(isinstance(each, _OwnerGoneError) for each in failures)
            kind = _OwnerGoneError if gone else type(failures[-1])
            raise kind("; ".join(dict.fromkeys(map(str, failures))))
        raise failures[-1]

    async def _ask(
        self, host: str, port: int, method: str, target: str, data: bytes | None, timeout_s: float
    ) -> HttpResponse:
        deadline = trio.current_time() + timeout_s
        for redirects in range(_REDIRECTS_MAX):
            left_s = max(0.0, deadline - trio.current_time())
            try:
                response = await http_request(
                    self._network,
                    host,
                    port,
                    method,
                    target,
                    data,
                    timeout_s=left_s,
                    authorization=self._credentials.header(),
                )
            except UnavailableError as error:
                if redirects and isinstance(error.__cause__, StreamLostError):
                    raise _OwnerGoneError(str(error)) from error
                raise
            location = response.headers.get("location")
            if response.status not in _REDIRECTS or location is None:
                return response
            try:
                parts = urlsplit(location)
                host, port = parts.hostname or host, parts.port or port
            except ValueError:
                raise AdminInDoubtError(
                    response.status,
                    f"a broker redirected the request to {location!r}, which is not a URL",
                ) from None
            self._check_redirect(location, parts.scheme)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
        raise AdminError(508, "brokers redirect the request in a circle")

    def _check_redirect(self, location: str, scheme: str) -> None:
        """Raise TlsError if a redirect leads out of TLS, or into it unprepared."""
        if scheme and (scheme == "https") != self._encrypted:
            raise TlsError(
                f"a broker redirects the request to {location}, which is without TLS: it is not"
                " followed"
                if self._encrypted
                else f"a broker redirects the request to {location}, which has TLS alone: use an"
                " admin URL that begins with https://"
            )


class _OwnerGoneError(UnavailableError):
    """A broker named another one, which takes no connections: it has just ended, perhaps."""


def _parsed(body: bytes) -> Json:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return body.decode(errors="replace")  # Some answers are plain text.


def check_response(response: HttpResponse, where: str) -> None:
    """Raise the error that the response is, if it is one."""
    if response.status >= 400:
        answer = _parsed(response.body)
        reason: object = answer
        applied: bool | None = None
        if isinstance(answer, dict):
            fields = cast("dict[str, object]", answer)
            reason = fields.get("reason")
            applied = False if fields.get("applied") is False else None
        if response.status == _NOT_FOUND and answer in (None, "Not Found"):
            # A broker names the object that is missing; this server does not know the path.
            raise AdminError(
                _NOT_FOUND, f"{where} has no admin interface: is that the HTTP port of a broker?"
            )
        text = str(reason or "no reason was given")
        raise admin_error(response.status, text, applied=applied)


def parse_admin_url(url: str) -> list[tuple[str, int]]:
    """Return the addresses in an admin URL.  Raise ValueError."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError(
            "an admin URL must begin with http:// or https://, as http://localhost:8080; this one"
            f" is {url!r}"
        )
    usual_port = _TLS_PORT if scheme == "https" else _PORT
    addresses: list[tuple[str, int]] = []
    for part in rest.rstrip("/").split(","):
        parts = urlsplit(f"//{part.strip()}")
        if not parts.hostname or parts.path:
            raise ValueError(f"{part!r} in the admin URL {url!r} is not HOST:PORT")
        addresses.append((parts.hostname, parts.port or usual_port))
    return addresses


def _schemas(topic: str) -> str:
    """Return the path of the schemas of a topic."""
    name = topic_name(topic)
    return f"/admin/v2/schemas/{name.namespace}/{name.encoded}"


def _subscription(topic: str, subscription: str) -> str:
    return f"{topic_path(topic)}/subscription/{url_encode(subscription)}"


def _place(start: MessageId | str) -> Json:
    where = parse_start(start)
    if not isinstance(where, MessageId):
        raise ValueError(
            f"the position must be 'earliest', 'latest' or a message id, not {start!r}"
        )
    return {
        "ledgerId": where.ledger_id,
        "entryId": where.entry_id,
        "partitionIndex": where.partition,
        "batchIndex": where.batch_index,
        "isExcluded": False,
    }


def _message_id(data: Json) -> MessageId:
    partition = _integer(data, "partitionIndex", -1)
    batch_index = _integer(data, "batchIndex", -1)
    ledger_id, entry_id = _integer(data, "ledgerId"), _integer(data, "entryId")
    return MessageId(signed(ledger_id), signed(entry_id), batch_index, partition)


def _texts(answer: Json) -> list[str]:
    if not isinstance(answer, list):
        raise _senseless(answer)
    texts = cast("list[object]", answer)
    if not all(isinstance(text, str) for text in texts):
        raise _senseless(answer)
    return cast("list[str]", texts)


def _integer(answer: Json, name: str, default: int | None = None) -> int:
    fields = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
    found = fields.get(name, default)
    if not isinstance(found, int):
        raise _senseless(answer)
    return found


def _senseless(answer: Json) -> AdminInDoubtError:
    """Return the error for an answer of the wrong form, perhaps of another HTTP server."""
    return AdminInDoubtError(
        200, f"the server sent an answer that no broker sends: {str(answer)[:_SHOWN_CHARS]!r}"
    )
