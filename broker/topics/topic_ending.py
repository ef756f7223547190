"""A topic that is being terminated: who waits for the outcome."""

import trio

from daybook.broker.errors import BrokerError
from daybook.managed_ledger.position import Position


class TopicEnding:
    """One attempt.  `decide` is called once."""

    def __init__(self) -> None:
        self._decided = trio.Event()
        self._last: Position | None = None
        self._error: BrokerError | None = None

    def decide(self, outcome: Position | BrokerError) -> None:
        """The position of the last message, or why the topic goes on."""
        if isinstance(outcome, BrokerError):
            self._error = outcome
        else:
            self._last = outcome
        self._decided.set()

    async def wait_decided(self) -> None:
        await self._decided.wait()

    async def outcome(self) -> Position:
        """The last position.  Raises BrokerError if the topic goes on."""
        await self._decided.wait()
        if self._error is not None:
            raise self._error
        assert self._last is not None
        return self._last
