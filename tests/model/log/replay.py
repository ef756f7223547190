"""A broker as a table, learned history by history.

A broker is a deterministic function of its inputs, in their order.  So its *history* is its state,
by number.  The outputs of one more input are found by replaying the whole history, once, to the
real shells in a trio program of their own.  The model does not look inside the shells: two
histories are never taken for one state, which costs states and hides none.

Each input is given when no task can run, and all its effects happen at once: tasks of one broker do
not race with each other here (trio's schedule is fixed).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio
import trio._core._run
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.model.log.events import (
    Answer,
    Asks,
    Call,
    Confirms,
    Do,
    GivesUp,
    Input,
    Output,
    Refuses,
    Says,
    Sleeps,
    Wait,
    What,
)
from tests.model.log.seams import ModelBroker, Seams
from tests.model.search import BrokenRuleError

_run: Any = trio._core._run
_SOON_S = 1e6  # later deadlines never come


@dataclass(frozen=True, slots=True)
class Node:
    """A history; `out` has the outputs of its last input, other fields sum up all of its inputs."""

    history: tuple[Input, ...]
    out: tuple[Output, ...] = ()
    pending: tuple[tuple[int, Call], ...] = ()
    opened: int = 0  # the ledger that the broker put on the list when it opened the log
    serves: bool = False  # the log is open: the broker has not reported a fence or a close
    subscribed: bool = False
    closing: bool = False
    sleeps: bool = False


class Histories:
    """The table of histories, which all brokers share."""

    def __init__(self, *, trims: bool) -> None:
        self.nodes: list[Node] = [Node(())]
        self._trims = trims
        self._next: dict[tuple[int, Input], int] = {}

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def tell(self, number: int, event: Input) -> int:
        key = (number, event)
        after = self._next.get(key)
        if after is None:
            after = self._next[key] = len(self.nodes)
            self.nodes.append(self._learned(self.nodes[number], event))
        return after

    def _learned(self, before: Node, event: Input) -> Node:
        history = (*before.history, event)
        out = play(history, trims=self._trims)
        pending = dict(before.pending)
        opened = before.opened
        serves, subscribed, closing = before.serves, before.subscribed, before.closing
        if isinstance(event, Answer):
            del pending[event.number]
        if isinstance(event, Do):
            closing |= event.command.name == "CLOSE"
        for each in out:
            match each:
                case Asks(asked, call):
                    pending[asked] = call
                case GivesUp(asked):
                    pending.pop(asked, None)
                case Says(What.OPENED, has_cursor, ledger_id):
                    opened, serves, subscribed = ledger_id, True, bool(has_cursor)
                case Says(What.SUBSCRIBED):
                    subscribed = True
                case Says(What.FENCED | What.CLOSED):
                    serves = False
                case _:
                    pass
        return Node(
            history,
            tuple(each for each in out if not isinstance(each, Sleeps)),
            tuple(sorted(pending.items())),
            opened,
            serves,
            subscribed,
            closing,
            any(isinstance(each, Sleeps) for each in out),
        )


def play(history: Sequence[Input], *, trims: bool) -> list[Output]:
    """Replay the inputs; return the outputs of the last one."""
    before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = random.Random(0), True
    try:
        return trio.run(_play, history, trims, clock=MockClock())
    except BaseExceptionGroup as group:
        raise BrokenRuleError("code", repr(group.exceptions[0])) from group
    finally:
        _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = before


async def _play(history: Sequence[Input], trims: bool) -> list[Output]:
    seams = Seams()
    async with trio.open_nursery() as nursery:
        broker = ModelBroker(seams, nursery, trims=trims)
        nursery.start_soon(broker.run)
        await wait_all_tasks_blocked()
        for event in history:
            seams.out.clear()
            _tell(seams, broker, event)
            await wait_all_tasks_blocked()
        out = list(seams.out)
        if trio.lowlevel.current_statistics().seconds_to_next_deadline < _SOON_S:
            out.append(Sleeps())
        nursery.cancel_scope.cancel()
    return out


def _tell(seams: Seams, broker: ModelBroker, event: Input) -> None:
    match event:
        case Answer(number, result):
            seams.answer(number, result)
        case Do():
            broker.do(event)
        case Confirms(ledger_id):
            seams.writers[ledger_id].confirm()
        case Refuses(ledger_id):
            seams.writers[ledger_id].refuse()
        case Wait():
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(trio.lowlevel.current_statistics().seconds_to_next_deadline)
