"""A bundle that another broker is handing over to this one, and the clients that wait for it.

The expectation ends when this broker owns the bundle, when the other one keeps it, or when nothing
was heard for `_EXPECT_S`.  Topics that the other broker has closed may be loaded before that; the
shell of `protocol.hand_over.Held`.
"""

from collections.abc import Callable, Iterable

import trio

from daybook.broker.protocol.hand_over import Held

# The other broker gives a group of topics 10 s to close, and the bundle 10 s more, without a word.
_EXPECT_S = 30.0  # Then a bundle is expected no longer.


class ExpectedBundle:
    """One bundle that is expected."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope(deadline=trio.current_time() + _EXPECT_S)
        self.ticket: object = None  # the ticket with which topics were passed on
        self._held = Held()
        self._ended = False
        self._changed = trio.Event()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def loads(self) -> bool:
        """True if this broker may have loaded topics of the bundle."""
        return self._held.begun

    def may_load(self, hash_: int) -> bool:
        return not self._ended and self._held.may_load(hash_)

    def hold(self, hashes: Iterable[int]) -> None:
        self._heard(lambda: self._held.hold(hashes))

    def pass_on(self, hashes: Iterable[int]) -> None:
        self._heard(lambda: self._held.pass_on(hashes))

    def _heard(self, change: Callable[[], None]) -> None:
        change()
        self.scope.deadline = trio.current_time() + _EXPECT_S
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, hash_: int) -> None:
        """Return when topics of this hash need not wait any more, or after the time above."""
        with trio.move_on_after(_EXPECT_S):
            while not self._ended and not self.may_load(hash_):
                await self._changed.wait()
