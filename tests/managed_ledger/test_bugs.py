"""An error that nobody expected ends one log; other logs of the same host go on."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.pending_adds import PendingAdd, PendingAdds
from tests.managed_ledger.world import World, append, message, play, read_all, send, settle, until


def fails(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


async def fails_later(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


def in_an_answer(log: ManagedLedger) -> None:
    log.append(message(99), 1, fails)


def in_a_listener(log: ManagedLedger) -> None:
    log.on_confirmed = fails
    send(log, range(99, 100))


def in_a_task(log: ManagedLedger) -> None:
    log._seal_previous = fails_later  # type: ignore[method-assign]
    send(log, range(99, 110))  # more than a ledger takes


@pytest.mark.parametrize("bug", [in_an_answer, in_a_listener, in_a_task])
def test_a_bug_ends_one_log_and_leaves_what_was_confirmed(
    bug: Callable[[ManagedLedger], None], bugs: list[str]
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            bad, good = await host.open(), await host.logs.open("t/n/persistent/good")
            told: list[object] = []
            bad.on_bug = told.append
            bad.on_fenced = lambda: told.append("fenced")
            await append(bad, range(3))
            bug(bad)
            await until(lambda: not bad.usable)
            assert [type(each) for each in told] in (
                [ZeroDivisionError, str],
                [ExceptionGroup, str],
            )
            late = await settle(send(bad, range(5)))
            assert [type(error) for _, error in late.failed] == [FencedError] * 5
            await append(good, range(3))
            again = await host.open()
            assert (await read_all(again))[:3] == [0, 1, 2]

    play(scenario)
    assert len(bugs) == 1
    bugs.clear()


def test_an_append_that_cannot_be_told_of_its_end_keeps_no_other_from_hearing(
    bugs: list[str],
) -> None:
    adds, told = PendingAdds(), list[object]()
    adds.add(PendingAdd([b"a"], 1, 0, fails))
    adds.add(PendingAdd([b"b"], 1, 1, lambda _, error: told.append(error)))
    error = FencedError("over")
    adds.fail(error)
    assert told == [error]
    bugs.clear()


def test_a_deletion_behind_that_fails_ends_nothing(
    bugs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            with monkeypatch.context() as patch:
                patch.setattr(LogContext, "delete_ledgers", fails_later)
                log.context.delete_later([5], log.ledgers.owner)
                await trio.sleep(1)
            await append(log, range(3))

    play(scenario)
    assert bugs
    bugs.clear()
