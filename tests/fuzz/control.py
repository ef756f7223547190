"""Target: the socket on which `daybook standalone` takes commands.

The services behind it are fakes: they obey, or fail.  Each request is answered with one line of
JSON, and no request ends the serving.
"""

import json
from collections.abc import Mapping
from typing import Any

import trio
from trio.testing import MockClock, memory_stream_pair

from daybook.clients.cli.control_server import serve_stream
from daybook.clients.cli.supervisor import PartFailedError
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, require

_TIMEOUT_S = 400.0


class MadeUpKeeper:
    """A fake service; `odd` ones fail, each in its way."""

    def __init__(self, name: str, *, odd: bool) -> None:
        self.lock = trio.Lock()
        self.orders: list[str] = []
        self.part = self
        self.name = name
        self.log = "the log"
        self._odd = odd

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "state": "running", "pid": 7, "restarts": 0}

    async def kill(self) -> None:
        self._obey("kill")
        await trio.sleep(0.1)

    async def stop(self) -> None:
        self._obey("stop")
        await trio.sleep(40.0 if self._odd else 0.1)

    async def start(self) -> None:
        self._obey("start")
        if self._odd:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()

    def pause(self) -> None:
        if self._odd:
            raise PartFailedError(f"{self.name} is down, not running.")
        self._obey("pause")

    def resume(self) -> None:
        self._obey("resume")

    def _obey(self, order: str) -> None:
        self.orders.append(order)


class MadeUpSupervisor:
    def __init__(self) -> None:
        self.ack_quorum = 2
        self.keepers = {
            name: MadeUpKeeper(name, odd=name == "broker-2")
            for name in ("zookeeper", "bookie-1", "broker-1", "broker-2")
        }


def run_control(data: bytes) -> None:
    trio.run(_converse, Choices(data), clock=MockClock(autojump_threshold=0))


async def _converse(choices: Choices) -> None:
    pieces: list[bytes | None] = []
    while choices and len(pieces) < 8:
        pieces.append(None if choices.one_in(16) else choices.blob(6000))
    supervisor: Any = MadeUpSupervisor()
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, supervisor, theirs)
        for piece in pieces:
            if piece is None:
                await trio.sleep(3)
            else:
                await ours.send_all(piece)
        if choices.flag():
            await ours.send_eof()
        answer = bytearray()
        with trio.fail_after(_TIMEOUT_S):
            while not answer.endswith(b"\n"):
                answer += await ours.receive_some()
        said = json.loads(answer)
        require(("error" in said) != ("parts" in said), "neither an error nor an answer")
    asked = b"".join(piece or b"" for piece in pieces)
    for keeper in supervisor.keepers.values():
        require(len(keeper.orders) <= 1, "one request gives several orders")
        for order in keeper.orders:
            require(keeper.name.encode() in asked and order.encode() in asked, "an invented order")


def control_seeds() -> Mapping[str, bytes]:
    def sized(text: bytes) -> bytes:
        return len(text).to_bytes(2, "big") + text

    return {
        "status": b"\0" + sized(b'{"command":"status"}\n'),
        "kill": b"\0" + sized(b'{"command":"kill","name":"broker-1"}\n'),
        "start": b"\0" + sized(b'{"command":"start","name":"broker-2"}\n'),
        "stop": b"\0" + sized(b'{"command":"stop","name":"broker-2"}\n'),
        "pause": b"\0" + sized(b'{"command":"pause","name":"broker-2"}\n'),
        "resume": b"\0" + sized(b'{"command":"resume","name":"bookie-1"}\n'),
        "no name": b"\0" + sized(b'{"command":"kill","name":null}\n'),
        "a list": b"\0" + sized(b'{"command":"kill","name":["broker-1"]}\n'),
        "in pieces": b"\0" + sized(b'{"command":') + b"\x0f\0" + sized(b'"status"}\n'),
        "nested": b"\0" + sized(b"[" * 5000),
    }


TARGETS = (
    Target(
        name="control",
        run=run_control,
        errors=(),
        seeds=control_seeds,
        input_bytes_max=8000,
        examples=100,
    ),
)
