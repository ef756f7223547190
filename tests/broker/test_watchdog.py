"""The watchdog's threads: they work while the event loop is stuck, and report its stack."""

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio

from daybook.broker import watchdog
from daybook.broker.namespaces.records import INCARNATION, BrokerRecord
from daybook.broker.ownership.membership import Member
from daybook.broker.ownership.peers import greeting, server_version, why_not_served
from daybook.broker.protocol.watchdog import WatchdogLimits
from daybook.broker.watchdog import EXIT_CODE, Watchdog, write_stacks
from daybook.wire.logging import silent_log
from daybook.wire.messages.registry import encode
from daybook.wire.probe import NotAskedError, PortProbe
from daybook.wire.proto import pulsar_pb2 as pb

PATIENCE_S = 120.0
# Ticks may be late here: other tests use the processors.
LIMITS = WatchdogLimits(
    silent_s=0.3, quiet_s=0.3, tick_s=0.02, late_s=PATIENCE_S, starved_share=1e6, ask_s=PATIENCE_S
)


class Port:
    """A port in another thread that answers CONNECTED, or nothing."""

    def __init__(self, *, answers: bool, incarnation: str = "") -> None:
        self.asked = threading.Event()
        self._answer = encode(pb.CommandConnected(server_version=server_version(incarnation)))
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.number = int(self._listening.getsockname()[1])
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            self.asked.set()
            self._held.append(accepted)
            if self._answers:
                accepted.recv(1000)
                accepted.sendall(self._answer)

    def close(self) -> None:
        self._listening.close()
        for sock in self._held:
            sock.close()

    def member(self, incarnation: str) -> Member:
        url = f"pulsar://127.0.0.1:{self.number}"
        record = BrokerRecord(
            pulsar_service_url=url,
            web_service_url=None,
            start_timestamp=0,
            broker_version_string="",
            protocols={INCARNATION: incarnation},
        )
        return Member("other", 1, record)


async def watch(
    own: Port,
    others: Callable[[], Sequence[Member] | None],
    *,
    stuck_s: float = 0.0,
    broker_id: str = "own",
) -> list[int]:
    """Return the exit codes of a watchdog, in the time that it needs, or in the given time."""
    ended: list[int] = []
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def end(code: int) -> None:
        ended.append(code)
        token.run_sync_soon(done.set)

    probe = PortProbe("127.0.0.1", own.number, greeting, why_not_served)
    dog = Watchdog(probe, LIMITS, broker_id=broker_id, others=others, log=silent_log(), end=end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dog.run)
        with trio.move_on_after(stuck_s or PATIENCE_S):
            await done.wait()
        nursery.cancel_scope.cancel()
    return ended


async def test_a_broker_that_answers_nobody_is_ended_if_another_one_serves(
    capfd: pytest.CaptureFixture[str],
) -> None:
    own, other = Port(answers=False), Port(answers=True, incarnation="b")
    assert await watch(own, lambda: [other.member("b")]) == [EXIT_CODE]
    written = capfd.readouterr().err
    assert "task " in written
    assert "test_watchdog.py" in written  # the place where this task waits
    assert "Thread 0x" in written
    own.close()
    other.close()


@pytest.mark.parametrize("known", [True, False])
async def test_the_only_broker_is_not_ended(known: bool) -> None:
    own, dead = Port(answers=False), Port(answers=True, incarnation="another life")
    asked = 0

    def others() -> Sequence[Member] | None:
        nonlocal asked
        asked += 1
        return [dead.member("b")] if known else None

    assert await watch(own, others, stuck_s=2.0) == []
    assert asked > 0
    own.close()
    dead.close()


@pytest.mark.parametrize(("broker_id", "ends"), [("a", True), ("z", False)])
async def test_of_brokers_that_are_all_stuck_one_is_ended(broker_id: str, ends: bool) -> None:
    own, stuck = Port(answers=False), Port(answers=False)
    ended = await watch(
        own, lambda: [stuck.member("b")], stuck_s=0.0 if ends else 6.0, broker_id=broker_id
    )
    assert ended == ([EXIT_CODE] if ends else [])
    assert stuck.asked.is_set()
    own.close()
    stuck.close()


async def test_a_broker_that_answers_is_not_ended() -> None:
    own, other = Port(answers=True), Port(answers=True, incarnation="b")
    assert await watch(own, lambda: [other.member("b")], stuck_s=2.0) == []
    own.close()
    other.close()


async def test_a_probe_without_a_descriptor_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = Port(answers=False), Port(answers=True, incarnation="b")

    def no_descriptor(self: Any) -> NoReturn:
        raise NotAskedError("no socket for the probe: Too many open files")

    monkeypatch.setattr(PortProbe, "_open", no_descriptor)
    assert await watch(own, lambda: [other.member("b")], stuck_s=2.0) == []
    assert not own.asked.is_set()
    own.close()
    other.close()


async def test_the_stacks_show_each_task(tmp_path: Path) -> None:
    async def sleeps_in_here(started: trio.Event) -> None:
        started.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        started = trio.Event()
        nursery.start_soon(sleeps_in_here, started)
        await started.wait()
        with (tmp_path / "stacks").open("w+") as file:
            write_stacks(trio.lowlevel.current_root_task(), file)
            file.seek(0)
            written = file.read()
        nursery.cancel_scope.cancel()
    assert "sleeps_in_here" in written
    assert "sleep_forever" in written


def test_what_the_kernel_says_is_read() -> None:
    starved_s = watchdog._starved_s()
    assert starved_s is None or starved_s >= 0
