"""A log that has ended is freed at once, however it ended, and does not wait for the collector."""

import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio

from daybook.managed_ledger import open as opening
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST
from tests.harness.garbage import collector_off
from tests.managed_ledger.world import CONFIG, Host, World, append, play

_LOGS = 3


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    with collector_off():
        yield


async def _close(_host: Host, log: ManagedLedger) -> None:
    await log.close()


async def _abandon(_host: Host, log: ManagedLedger) -> None:
    log.abandon()


async def _lose(_host: Host, log: ManagedLedger) -> None:
    log.lost("another broker has it")


async def _fail(_host: Host, log: ManagedLedger) -> None:
    log.failed(ZeroDivisionError())


async def _delete(host: Host, log: ManagedLedger) -> None:
    await host.logs.delete(log)


@pytest.mark.parametrize("end", [_close, _abandon, _lose, _fail, _delete])
def test_a_log_that_has_ended_is_freed(
    end: Callable[[Host, ManagedLedger], Awaitable[None]], bugs: list[str]
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            gone = list[weakref.ref[ManagedLedger]]()

            async def come_and_go() -> None:
                log = await host.open()
                positions = await append(log, range(3 * CONFIG.roll_entries))
                cursor = await log.open_cursor("s", initial=EARLIEST)
                cursor.ack(positions[1:5])
                await cursor.flush()
                await end(host, log)
                gone.append(weakref.ref(log))

            for _ in range(_LOGS):
                await come_and_go()
            await trio.sleep(5)
            assert [log() for log in gone] == [None] * _LOGS

    play(scenario)
    if end is _fail:
        bugs.clear()


def test_a_log_that_ends_while_it_is_opened_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another owner may come in the moment in which the log is there."""
    take_over = opening._take_over  # pyright: ignore[reportPrivateUsage]

    async def lose(*args: Any) -> ManagedLedger:
        log = await take_over(*args)
        log.lost("another broker has it")
        return log

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            monkeypatch.setattr(opening, "_take_over", lose)
            gone = weakref.ref(await host.open())
            await trio.sleep(5)
            assert gone() is None

    play(scenario)


def test_a_bug_in_a_task_of_a_log_that_is_freed_already_is_logged(bugs: list[str]) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host, world.host("b") as other:
            log = await host.open()
            gone = weakref.ref(log)

            async def fail_at_the_end() -> None:
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
                assert gone() is None
                raise ZeroDivisionError

            log.context.tasks.start_soon(fail_at_the_end)
            await trio.sleep(1)
            log.abandon()
            del log
            await trio.sleep(5)
            await append(await other.open(), range(3))

    play(scenario)
    assert [bug for bug in bugs if "had a bug at its end" in bug] == bugs != []
    bugs.clear()
