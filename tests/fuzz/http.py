"""Targets: the admin REST API of a broker under arbitrary requests; and our clients of it under
arbitrary answers.

Requests go to the application of a whole broker (`world`), as an HTTP server hands them on;
methods, paths, queries and bodies are of a fuzzer's choice.  None is answered with 500, each JSON
answer is JSON, and the broker still serves after each.

Answers come to the two clients of that REST API, a broker's (`PeerCalls`) and an administrator's
(`Admin`), over a stream in memory.
"""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import trio
from trio.testing import MockClock

from daybook.broker.errors import BrokerError
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import BrokerError as ClientError
from daybook.wire.transport import Listener, Stream
from tests.fuzz.choices import Choices
from tests.fuzz.streams import ScriptedStream
from tests.fuzz.target import Target, require
from tests.fuzz.world import World, play

_METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD")
_BODY_BYTES_MAX = 1 << 20
_ROUTES = (
    "/admin/v2/clusters/{}",
    "/admin/v2/tenants/{}",
    "/admin/v2/namespaces/{}",
    "/admin/v2/namespaces/{}/{}",
    "/admin/v2/namespaces/{}/{}/retention",
    "/admin/v2/namespaces/{}/{}/persistence",
    "/admin/v2/namespaces/{}/{}/bundles",
    "/admin/v2/namespaces/{}/{}/topics",
    "/admin/v2/namespaces/{}/{}/unload",
    "/admin/v2/namespaces/{}/{}/{}/unload",
    "/admin/v2/namespaces/{}/{}/{}",
    "/admin/v2/brokers",
    "/admin/v2/brokers/{}",
    "/admin/v2/brokers/{}/{}/ownedNamespaces",
    "/admin/v2/persistent/{}/{}",
    "/admin/v2/persistent/{}/{}/partitioned",
    "/admin/v2/persistent/{}/{}/{}",
    "/admin/v2/persistent/{}/{}/{}/partitions",
    "/admin/v2/persistent/{}/{}/{}/stats",
    "/admin/v2/persistent/{}/{}/{}/internalStats",
    "/admin/v2/persistent/{}/{}/{}/partitioned-stats",
    "/admin/v2/persistent/{}/{}/{}/partitioned-internalStats",
    "/admin/v2/persistent/{}/{}/{}/lastMessageId",
    "/admin/v2/persistent/{}/{}/{}/messageid/{}",
    "/admin/v2/persistent/{}/{}/{}/getMessageIdByIndex?index={}",
    "/admin/v2/persistent/{}/{}/{}/terminate",
    "/admin/v2/persistent/{}/{}/{}/terminate/partitions",
    "/admin/v2/persistent/{}/{}/{}/unload",
    "/admin/v2/persistent/{}/{}/{}/subscriptions",
    "/admin/v2/persistent/{}/{}/{}/subscription/{}",
    "/admin/v2/persistent/{}/{}/{}/subscription/{}/skip_all",
    "/admin/v2/persistent/{}/{}/{}/subscription/{}/resetcursor",
    "/admin/v2/persistent/{}/{}/{}/subscription/{}/resetcursor/{}",
    "/lookup/v2/topic/persistent/{}/{}/{}",
    "/lookup/v2/topic/persistent/{}/{}/{}/bundle",
    "/metrics",
    "/healthz",
    "/readyz",
)
_USUAL = ("public", "default", "t", "sub", "7")
_ODD = (
    b"%2F",
    b"a%20b",
    b"%ff",
    b"..",
    b".",
    b"%00",
    b"-1",
    b"9" * 30,
    b"%E2%82%AC",
    b"*",
    b"x" * 300,
    b"0x00000000_0xffffffff",
    b"standalone",
    b"t-partition-0",
)
_BODIES = (
    b"",
    b"null",
    b"3",
    b"-1",
    b"1e99",
    b"99999999999999999999",
    b"[]",
    b'{"partitions":3,"properties":{"k":"v"}}',
    b'{"ledgerId":0,"entryId":0,"partitionIndex":-1}',
    b'{"ledgerId":9223372036854775807,"entryId":9223372036854775807}',
    b'{"ledgerId":-5,"entryId":-5,"batchIndex":-5}',
    b'{"ledgerId":0,"entryId":0,"batchIndex":2147483647,"isExcluded":true}',
    b'{"retentionTimeInMinutes":1,"retentionSizeInMB":2}',
    b'{"retentionTimeInMinutes":9223372036854775807,"retentionSizeInMB":-1}',
    b'{"bookkeeperEnsemble":1,"bookkeeperWriteQuorum":1,"bookkeeperAckQuorum":1}',
    b'{"bookkeeperEnsemble":2147483648,"bookkeeperWriteQuorum":1,"bookkeeperAckQuorum":1}',
    b'{"bundles":{"numBundles":3}}',
    b'{"bundles":{"boundaries":["0x00000000","0x7fffffff","0xffffffff"]}}',
    b'{"bundles":{"boundaries":["-1","zz"]}}',
    b'{"adminRoles":["a"],"allowedClusters":["standalone"]}',
    b'{"serviceUrl":"http://x"}',
    b'{"k":"v"}',
    b"[" * 5000,
    b'{"a":' * 2000,
    b'"\\ud800"',
)
_FLAGS = (b"", b"force=true", b"authoritative=true", b"force=maybe", b"mode=ALL", b"%ff=%ff")


def _request(choices: Choices) -> tuple[str, bytes, bytes, bytes]:
    """Return method, encoded path, query and body."""
    method = choices.pick(_METHODS)
    if choices.one_in(12):
        path = b"/" + bytes(byte for byte in choices.blob(40) if 33 <= byte < 127 and byte != 63)
    else:
        parts = choices.pick(_ROUTES).split("{}")
        path = parts[0].encode()
        for number, part in enumerate(parts[1:]):
            name = _USUAL[number % len(_USUAL)].encode()
            path += (choices.pick(_ODD) if choices.one_in(5) else name) + part.encode()
    query = choices.pick(_FLAGS) if choices.one_in(3) else b""
    body = choices.pick(_BODIES) if choices.flag() else b""
    if choices.one_in(8):
        body = choices.blob(60)
    return method, path, query, body


async def ask(
    world: World, method: str, path: bytes, query: bytes = b"", body: bytes = b""
) -> tuple[int, bytes]:
    """Return status and content of the answer, after checking that it is allowed."""
    said: list[dict[str, Any]] = []
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            await trio.lowlevel.checkpoint()
            return sent.pop()
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        said.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"broker:8080"), (b"content-type", b"application/json")],
        "client": ("client", 1),
        "server": ("broker", 8080),
    }
    assert world.port.app is not None
    with trio.fail_after(120):
        await world.port.app(scope, receive, send)  # type: ignore[arg-type]
    return _checked_answer(said)


def _checked_answer(said: list[dict[str, Any]]) -> tuple[int, bytes]:
    require(said and said[0]["type"] == "http.response.start", "no answer")
    status, headers = said[0]["status"], dict(said[0]["headers"])
    content = b"".join(message.get("body", b"") for message in said[1:])
    require(status != 500, f"500: {content!r}")
    if headers.get(b"content-type") == b"application/json":
        value = json.loads(content)
        if status >= 400:
            require(isinstance(value.get("reason"), str), "an error without its reason")
    return status, content


async def _scenario(world: World, data: bytes) -> None:
    choices = Choices(data)
    await ask(world, "GET", b"/lookup/v2/topic/persistent/public/default/t")
    await ask(world, "PUT", b"/admin/v2/persistent/public/default/t")
    while choices:
        await ask(world, *_request(choices))
        world.check_log()
    await ask(world, "GET", b"/admin/v2/brokers/health")
    world.check_log()


def run_admin(data: bytes) -> None:
    play(lambda world: _scenario(world, data))


def admin_seeds() -> Mapping[str, bytes]:
    seeds = {
        f"{method}": bytes(
            byte for route in range(len(_ROUTES)) for byte in (number, 0, route, *([0] * 8))
        )[:400]
        for number, method in enumerate(_METHODS)
    }
    seeds["any"] = bytes(range(256))
    return seeds


# -- answers


class FixedNetwork:
    """A network that connects to one stream after the other."""

    def __init__(self, streams: list[ScriptedStream]) -> None:
        self._streams = streams

    async def connect(self, host: str, port: int) -> Stream:
        await trio.lowlevel.checkpoint()
        return self._streams.pop(0) if self._streams else ScriptedStream([])

    async def listen(self, host: str, port: int) -> Listener:
        raise OSError("nobody listens here")


def _streams(choices: Choices) -> list[ScriptedStream]:
    streams: list[ScriptedStream] = []
    while choices and len(streams) < 4:
        head = choices.pick(_HEADS)
        content = choices.blob(1000) if len(streams) < 3 else choices.rest()
        streams.append(ScriptedStream([head, content], breaks=choices.one_in(8)))
    return streams


_HEADS = (
    b"",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other:8080/x?y=z\r\n"
    b"Content-Length: 0\r\n\r\n",
    b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: ",
    b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n",
)


def run_peer_answer(data: bytes) -> None:
    choices = Choices(data)
    trio.run(_call_peer, _streams(choices), clock=MockClock(autojump_threshold=0))


async def _call_peer(streams: list[ScriptedStream]) -> None:
    calls = PeerCalls(PeerNetwork(FixedNetwork(streams)))
    await calls.call("http://peer:8080", "GET", "/admin/v2/clusters", query={"a": "b"}, body=[1])


def run_admin_answer(data: bytes) -> None:
    choices = Choices(data)
    which = choices.below(4)
    trio.run(_administer, which, _streams(choices), clock=MockClock(autojump_threshold=0))


async def _administer(which: int, streams: list[ScriptedStream]) -> None:
    admin = Admin("http://broker:8080", network=FixedNetwork(streams), rng=Random(1))
    match which:
        case 0:
            await admin.topics()
        case 1:
            await admin.create_topic("t")
        case 2:
            await admin.stats("t")
        case _:
            await admin.policies("public/default")


def answer_seeds() -> Mapping[str, bytes]:
    return {
        "list": b'\0\2\0\x05["t"]\0',
        "nothing": b"\1\3\0\0\0",
        "refused": b'\2\4\0\x15{"reason":"not there"}\0',
        "redirected": b"\2\5\0\0\0\2\0\2{}\0",
        "elsewhere": b"\0\6\0\x13http://[::1]:99999/\r\n\r\n\0\2\0\2[]\0",
        "chunked": b"\3\7\0\x0c2\r\n{}\r\n0\r\n\r\n\0",
        "nested": b"\0\2\3\xe8" + b"[" * 1000,
    }


TARGETS = (
    Target(
        name="http.admin",
        run=run_admin,
        errors=(),
        seeds=admin_seeds,
        input_bytes_max=400,
        steps_max=1_500_000,
        steps_a_byte=10_000,
        memory_bytes_max=64 << 20,
        examples=20,
        weight=4.0,
    ),
    Target(
        name="http.peer_answer",
        run=run_peer_answer,
        errors=(BrokerError,),
        seeds=answer_seeds,
        input_bytes_max=1500,
        steps_a_byte=500,
    ),
    Target(
        name="http.admin_answer",
        run=run_admin_answer,
        errors=(ClientError,),
        seeds=answer_seeds,
        input_bytes_max=1500,
        steps_a_byte=500,
    ),
)
