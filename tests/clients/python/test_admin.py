"""The admin REST client against a scripted HTTP server."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

import daybook
from daybook.clients.python.admin import Admin
from daybook.wire.proto import pulsar_pb2 as pb

Answer = Callable[[str, str, bytes], bytes | None]


def http(status: int, body: str = "", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers, "", body]
    return "\r\n".join(lines).encode()


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[int]:
    """Answer each request with `answer(method, target, body)`; None closes the connection."""

    async def serve(stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive_some()
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields.get(b"content-length", b"0")):
            body += await stream.receive_some()
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        reply = answer(method, target, body)
        if reply is not None:
            await stream.send_all(reply)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_requests_are_those_of_pulsar() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def answer(method: str, target: str, body: bytes) -> bytes:
        seen.append((method, target, body))
        if target.endswith("/partitions") and method == "GET":
            return http(200, '{"partitions": 3}')
        return http(200, '["a"]') if method == "GET" else http(204)

    async with server(answer) as port:
        admin = Admin(f"http://127.0.0.1:{port}")
        assert await admin.topics("t/n") == ["a"]
        await admin.create_topic("a b", partitions=3)
        await admin.create_subscription("x", "s/1", start="earliest")
        await admin.delete_topic("x", force=True)
        assert await admin.topics("t/n", persistent=False) == ["a"]
    assert seen[-1][:2] == ("GET", "/admin/v2/non-persistent/t/n")
    assert seen[0][:2] == ("GET", "/admin/v2/persistent/t/n")
    assert seen[1] == ("PUT", "/admin/v2/persistent/public/default/a+b/partitions", b"3")
    assert seen[2][:2] == ("PUT", "/admin/v2/persistent/public/default/x/subscription/s%2F1")
    assert b'"ledgerId": -1' in seen[2][2]
    deleted = "/admin/v2/persistent/public/default/x/partitions?force=true"
    assert seen[4][:2] == ("DELETE", deleted)


async def test_redirects_are_followed_and_dead_brokers_passed_over() -> None:
    async with server(lambda *_: http(200, '["b1"]')) as owner:
        location = f"Location: http://127.0.0.1:{owner}/admin/v2/brokers?authoritative=true"
        async with server(lambda *_: http(307, "", location)) as other:
            for _ in range(4):
                admin = Admin(f"http://127.0.0.1:1,127.0.0.1:{other}")
                assert await admin.brokers() == ["b1"]


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_an_owner_that_has_just_died_is_waited_for(method: str) -> None:
    async with server(lambda *_: http(200, '["b1"]')) as successor:
        owners = iter([1, 1])  # Nobody listens there.

        def redirect(*_: object) -> bytes:
            port = next(owners, successor)
            return http(307, "", f"Location: http://127.0.0.1:{port}/admin/v2/brokers")

        async with server(redirect) as other:
            admin = Admin(f"http://127.0.0.1:{other}")
            if method == "GET":
                assert await admin.brokers() == ["b1"]
            else:
                await admin.unload_topic("x")
    assert next(owners, None) is None, "the dead owner was tried"


async def test_refusals_say_why_and_failures_leave_it_open() -> None:
    async def fails(reply: bytes | None, kind: type[daybook.BrokerError]) -> daybook.BrokerError:
        async with server(lambda *_: reply) as port:
            with pytest.raises(kind) as caught:
                await Admin(f"http://127.0.0.1:{port}").create_topic("x")
        return caught.value

    refused = await fails(http(409, '{"reason": "it exists"}'), daybook.ConflictError)
    assert refused.outcome is daybook.Outcome.NOT_APPLIED
    assert "it exists" in str(refused)
    assert (await fails(http(404, "gone"), daybook.NotFoundError)).outcome.name == "NOT_APPLIED"
    assert (await fails(http(500), daybook.AdminInDoubtError)).outcome is daybook.Outcome.UNKNOWN
    not_begun = http(503, '{"reason": "no contact", "applied": false}')
    not_ready = await fails(not_begun, daybook.AdminNotReadyError)
    assert (not_ready.outcome, not_ready.remedy.name) == (daybook.Outcome.NOT_APPLIED, "RETRY")
    for unclear in ('{"reason": "no contact"}', '{"reason": "x", "applied": true}', "false"):
        await fails(http(503, unclear), daybook.AdminInDoubtError)
    assert (await fails(None, daybook.ConnectionLostError)).outcome is daybook.Outcome.UNKNOWN
    assert (await fails(b"nonsense\r\n\r\n", daybook.ConnectionLostError)).outcome.name == "UNKNOWN"


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, daybook.AuthenticationError, pb.AuthenticationError),
        (403, daybook.AuthorizationError, pb.AuthorizationError),
    ],
)
async def test_a_refused_role_has_the_errors_of_both_worlds(
    status: int, kind: type[daybook.NotAllowedError], code: int
) -> None:
    async with server(lambda *_: http(status, '{"reason": "because"}')) as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(kind, match=rf"^because \(HTTP {status}\)$") as caught:
            await Admin(url).tenants()
        assert isinstance(caught.value, daybook.AdminError)
        assert (caught.value.status, caught.value.code) == (status, code)
        assert not daybook.may_retry(caught.value, idempotent=True)

        def ask() -> None:
            with daybook.blocking.connect_admin(url) as admin:
                admin.tenants()

        with pytest.raises(kind):
            await trio.to_thread.run_sync(ask)


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (
            b"\x00\x00\x00\x08nonsense",
            daybook.WrongProtocolError,
            "is not the HTTP port of a broker",
        ),
        (b"", daybook.ConnectionLostError, "before any answer: is that the HTTP port"),
        (None, daybook.ConnectionLostError, "127.0.0.1"),
        (
            http(404, "Not Found"),
            daybook.AdminError,
            "has no admin interface: is that the HTTP port",
        ),
        (http(404, '{"reason": "no such tenant"}'), daybook.NotFoundError, "no such tenant"),
    ],
)
async def test_another_port_than_that_of_a_broker_is_said(
    reply: bytes | None, kind: type[daybook.BrokerError], said: str
) -> None:
    async with server(lambda *_: reply) as port:
        with pytest.raises(kind, match=said) as caught:
            await Admin(f"http://127.0.0.1:{port}").tenants()
    assert type(caught.value) is kind


async def test_a_wrong_port_among_those_of_brokers_is_passed_over() -> None:
    async with server(lambda *_: b"nonsense") as wrong, server(lambda *_: http(200, "[]")) as port:
        for _ in range(4):
            assert await Admin(f"http://127.0.0.1:{wrong},127.0.0.1:{port}").tenants() == []


def test_the_same_without_trio() -> None:
    with (
        daybook.blocking.connect_admin("http://127.0.0.1:1") as admin,
        pytest.raises(daybook.UnavailableError),
    ):
        admin.brokers()


@pytest.mark.parametrize("url", ["pulsar://x", "http://", "https://", "http://a/b"])
def test_what_is_no_admin_url(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Admin(url)


def test_every_call_exists_without_trio_too() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(Admin) == names(daybook.blocking.Admin) - {"close"}


async def test_each_broker_that_fails_is_named() -> None:
    admin = Admin("http://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(daybook.UnavailableError) as caught:
        await admin.brokers()
    assert "127.0.0.1:1:" in str(caught.value)
    assert "127.0.0.1:2:" in str(caught.value)
