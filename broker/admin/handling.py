"""From an HTTP request to a call and back: arguments, JSON, refusals.

A handler takes a `Call` and returns the object to send as JSON, or None for 204.  A `BrokerError`
becomes the status of the error and `{"reason": ...}`.  A `NotOwnerError` becomes a redirect to the
owner if the owner is known; a redirect from https never leads to http.  Names in paths are
URL-encoded once, so paths are matched *before* they are decoded: the name of a topic may contain a
slash.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from urllib.parse import urlencode

import msgspec
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from daybook.broker.admin.access import Access, domain_of
from daybook.broker.admin.answer_budget import AnswerBudget
from daybook.broker.admin.body_budget import BodyBudget
from daybook.broker.admin.held_refusals import HeldRefusals
from daybook.broker.errors import (
    AuthenticationError,
    BrokerError,
    InvalidNameError,
    NoRoomError,
    NotBegunError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
    before_any_change,
)
from daybook.broker.security.resources import Resource
from daybook.broker.security.rights import READS_MESSAGES, Right, right_of_path
from daybook.broker.service.places import address_of
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.topics import TopicName, check_namespace, url_decode

_HANDLER_TIMEOUT_S = 60.0
_BODY_TIMEOUT_S = 10.0
_BODY_BYTES_PER_S = 128 << 10  # Large bodies have more time in this measure.
_READING = ("GET", "HEAD")
# The paths whose answers grow with the number of topics, subscriptions or namespaces.
_LISTS = (
    "/{tenant}/{namespace}",
    "/partitioned",
    "/topics",
    "/subscriptions",
    "/tenants",
    "/namespaces/{tenant}",
    "/ownedNamespaces",
    "/sinks",
    "/destinations",
)

PartsT = TypeVar("PartsT")
ValueT = TypeVar("ValueT")


class BadBodyError(PreconditionError):
    status = 400


class BodyTooLargeError(BadBodyError):
    status = 413


class Text(str):
    """An answer that is sent as plain text."""

    __slots__ = ()


def _nothing() -> None:
    """Do nothing when an answer is sent."""


@dataclass(frozen=True, slots=True)
class Content:
    """An answer of bytes, with headers.

    `on_done` is called when it is sent, or its connection has ended.
    """

    data: bytes
    headers: Sequence[tuple[str, str]]
    on_done: Callable[[], None] = _nothing


class HeldResponse(Response):
    """An answer that tells when it needs no memory any more."""

    on_done: Callable[[], None] = staticmethod(_nothing)
    """Called when the answer is sent, or its connection has ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_done()


class Call(Generic[PartsT]):
    """One request, with the parts of the broker that handlers use."""

    def __init__(
        self, request: Request, parts: PartsT, body_bytes_max: int, bodies: BodyBudget
    ) -> None:
        self.parts = parts
        self._request = request
        self._body_bytes_max = body_bytes_max
        self._bodies = bodies
        self._counted = 0  # bytes of the body that the budget counts
        self._read: bytes | None = None

    def release(self) -> None:
        """Give back the memory of the body; the request has its answer.  Idempotent."""
        counted, self._counted = self._counted, 0
        self._bodies.release(_client_of(self._request), counted)

    @property
    def encrypted(self) -> bool:
        """Return True if the client came over TLS."""
        return _is_encrypted(self._request)

    def path(self, name: str) -> str:
        """Return a component of the path, decoded."""
        try:
            return url_decode(self._request.path_params[name])
        except MalformedError as error:
            raise InvalidNameError(str(error)) from None

    @property
    def namespace(self) -> str:
        try:
            return check_namespace(f"{self.path('tenant')}/{self.path('namespace')}")
        except MalformedError as error:
            raise InvalidNameError(str(error)) from None

    @property
    def domain(self) -> str:
        """The domain of topics that the path names."""
        return domain_of(self._request.scope["path"])

    @property
    def topic(self) -> TopicName:
        try:
            return TopicName.parse(f"{self.domain}://{self.namespace}/{self.path('topic')}")
        except MalformedError as error:
            raise InvalidNameError(str(error)) from None

    def query(self, name: str, default: str = "") -> str:
        return self._request.query_params.get(name, default)

    def queries(self, name: str) -> list[str]:
        """Return all values of a parameter that may be repeated."""
        return self._request.query_params.getlist(name)

    def header(self, name: str) -> str:
        return self._request.headers.get(name, "")

    def flag(self, name: str, *, default: bool = False) -> bool:
        match self.query(name).lower():
            case "":
                return default
            case "true":
                return True
            case "false":
                return False
            case other:
                raise PreconditionError(f"{name} must be true or false, not {other!r}")

    def integer(self, name: str) -> int:
        """Return a component of the path that is a number."""
        text = self.path(name)
        try:
            return int(text)
        except ValueError:
            raise PreconditionError(f"{name} in the path must be a number, not {text!r}") from None

    async def body(self, kind: type[ValueT]) -> ValueT:
        """Return the body, decoded from JSON.  Raise BadBodyError."""
        content = await self._content()
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadBodyError(f"the body of the request is not valid: {error}") from None

    async def optional_body(self, kind: type[ValueT]) -> ValueT | None:
        """Return the decoded body, None if there is none.  Raise BadBodyError."""
        content = await self._content()
        return await self.body(kind) if content.strip() not in (b"", b"null") else None

    async def content(self) -> bytes:
        """Return the body as it is."""
        return await self._content()

    async def _content(self) -> bytes:
        if self._read is None:
            pieces: list[bytes] = []
            size = 0
            with trio.move_on_after(_BODY_TIMEOUT_S) as scope:
                async for piece in self._request.stream():
                    size += len(piece)
                    scope.deadline += len(piece) / _BODY_BYTES_PER_S
                    if piece:  # The last one is empty, and one piece alone is not copied.
                        pieces.append(piece)
                    if size > self._body_bytes_max:
                        raise BodyTooLargeError(
                            f"the body of the request may have at most {self._body_bytes_max}"
                            " bytes (http_body_bytes_max)"
                        )
                    client = _client_of(self._request)
                    self._counted = self._bodies.grown(client, self._counted, size)
            if scope.cancelled_caught:
                raise BadBodyError(
                    f"the body of the request did not arrive within {_BODY_TIMEOUT_S:g} s, and a"
                    f" second more for each {_BODY_BYTES_PER_S >> 10} KiB of it"
                )
            self._read = b"".join(pieces)
        return self._read


Handler = Callable[[Call[PartsT]], Awaitable[object]]
TargetsOf = Callable[[Call[PartsT]], Awaitable[Sequence[Resource]]]


class Endpoints(Generic[PartsT]):
    """Makes routes of handlers that share parts of the broker."""

    def __init__(
        self,
        parts: PartsT,
        body_bytes_max: int,
        log: Log,
        access: Access | None = None,
        held: HeldRefusals | None = None,
        answers: AnswerBudget | None = None,
        bodies: BodyBudget | None = None,
    ) -> None:
        self._access = access
        self._held = held or HeldRefusals()
        self._answers = answers or AnswerBudget()
        self._bodies = bodies or BodyBudget()
        self._parts = parts
        self._body_bytes_max = body_bytes_max
        self._log = log

    def route(
        self,
        path: str,
        handlers: Mapping[str, Handler[PartsT]],
        targets: TargetsOf[PartsT] | None = None,
    ) -> Route:
        """Return the route of one path, with a handler for each method.

        `targets` returns the objects on which a right is needed, if the path does not name them.
        Raise KeyError if `security.rights` has no right for one of them.
        """
        rights = {method: right_of_path(method, path) for method in handlers}
        reads_messages = path.endswith(READS_MESSAGES)
        is_list = path.endswith(_LISTS)

        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            handler = handlers.get(method)
            if handler is None:
                return reason(405, f"{request.method} is not possible here")
            return await self._handle(
                handler,
                request,
                rights[method],
                targets,
                reads_messages=reads_messages,
                is_list=is_list,
            )

        return Route(path, endpoint, methods=["GET", "PUT", "POST", "DELETE", "PATCH"])

    async def _handle(
        self,
        handler: Handler[PartsT],
        request: Request,
        right: Right,
        targets: TargetsOf[PartsT] | None,
        *,
        reads_messages: bool,
        is_list: bool,
    ) -> Response:
        call = Call(request, self._parts, self._body_bytes_max, self._bodies)
        try:
            with trio.fail_after(_HANDLER_TIMEOUT_S):
                if self._access is not None:
                    of_call = None if targets is None else partial(targets, call)
                    await self._access.admit(request, right, of_call, reads_messages=reads_messages)
                return await self._answer(handler, call, request, is_list=is_list)
        except NotOwnerError as error:
            return _redirect(request, error)
        except BrokerError as error:
            await self._held.hold(request, error)
            return refused(error)
        except trio.TooSlowError:
            text = "the operation takes too long; it may still be carried out"
            return reason(UnavailableError.status, text)
        except ClientDisconnect:
            return reason(400, "the client has disconnected")
        except Exception as error:
            self._log.error(
                "an HTTP request failed because of a bug: please report it",
                path=request.scope["path"],
                exc_info=error,
            )
            return reason(500, "the broker failed; its log has the reason")
        finally:
            call.release()

    async def _answer(
        self, handler: Handler[PartsT], call: Call[PartsT], request: Request, *, is_list: bool
    ) -> Response:
        if request.method not in _READING:
            return answer(await handler(call))

        async def make() -> HeldResponse:
            return answer(await handler(call))

        with before_any_change():
            return await within(self._answers, request, make, is_list=is_list)


def _client_of(request: Request) -> str:
    """Return the address of the client, which shares budgets with all its other requests."""
    client = request.client
    return "" if client is None else address_of(f"{client.host}:{client.port}")


async def within(
    budget: AnswerBudget,
    request: Request,
    make: Callable[[], Awaitable[HeldResponse]],
    *,
    is_list: bool = False,
) -> HeldResponse:
    """Return the answer that `make` makes; the budget has room for it until it is sent.

    Raise NoRoomError.
    """
    held = await budget.hold(request.scope["path"], _client_of(request), is_list=is_list)
    try:
        response = await make()
        if response.on_done is _nothing:  # The memory of others is counted elsewhere.
            held.made(len(response.body))
            response.on_done = held.release
        else:
            held.release()
    except BaseException:
        held.release()
        raise
    return response


def answer(value: object) -> HeldResponse:
    if value is None:
        return HeldResponse(status_code=204)
    if isinstance(value, Text):
        return HeldResponse(str(value), media_type="text/plain")
    if isinstance(value, Content):
        return _content(value)
    return HeldResponse(msgspec.json.encode(value), media_type="application/json")


def _content(content: Content) -> HeldResponse:
    response = HeldResponse(content.data, media_type="application/octet-stream")
    response.on_done = content.on_done
    for name, value in content.headers:
        # Names and values come from messages: a header cannot have line breaks or other letters.
        with suppress(UnicodeEncodeError):
            if name.isascii() and name.isprintable() and " " not in name and value.isprintable():
                response.headers.append(name, value.encode("latin-1").decode("latin-1"))
    return response


def reason(status: int, text: str) -> Response:
    return _json({"reason": text}, status)


def _json(value: Mapping[str, object], status: int) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refused(error: BrokerError) -> Response:
    """Return the answer that says why a request was refused."""
    response = reason(error.status, str(error))
    if isinstance(error, NotBegunError):
        response = _json({"reason": str(error), "applied": False}, error.status)
    if isinstance(error, AuthenticationError):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, NoRoomError):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _redirect(request: Request, error: NotOwnerError) -> Response:
    url = error.http_url_tls if _is_encrypted(request) else error.http_url or error.http_url_tls
    if not url:
        why = "; it has no port for https, and no redirect leads out of TLS" * bool(error.http_url)
        return reason(UnavailableError.status, f"{error}{why}")
    query = dict(request.query_params)
    query["authoritative"] = "true" if error.authoritative else "false"
    location = f"{url.rstrip('/')}{request.scope['path']}?{urlencode(query)}"
    response = reason(NotOwnerError.status, str(error))
    response.headers["Location"] = location
    return response


def _is_encrypted(request: Request) -> bool:
    return request.scope.get("scheme") == "https"


def with_encoded_paths(app: ASGIApp) -> ASGIApp:
    """Match undecoded paths, so that an encoded slash in a name does not split it."""

    async def encoded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await app(scope, receive, send)

    return encoded
