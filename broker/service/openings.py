"""The openings of producers, or of consumers, on one connection.

An opening is a request that waits for its turn and then runs in a task of its own.  Its client may
close what it opens meanwhile.  An attempt is the number that `protocol.producing` or
`protocol.consuming` gave to the opening.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import trio

from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.service.request_turns import Request, RequestQueue


@dataclass(slots=True)
class Opening:
    """A producer or a consumer that is being opened, or waits for its turn to be opened."""

    scope: trio.CancelScope
    request: Request
    give_up: Callable[[BrokerError], None]


class Openings:
    """The openings that have begun and not ended.  `what` they open is named in errors."""

    def __init__(self, what: str, requests: RequestQueue) -> None:
        self._what = what
        self._requests = requests
        self._by_attempt: dict[int, Opening] = {}

    def __len__(self) -> int:
        return len(self._by_attempt)

    def begin(
        self,
        attempt: int,
        run: Callable[[Opening], Awaitable[None]],
        frame_bytes: int,
        give_up: Callable[[BrokerError], None],
    ) -> None:
        """Run an opening in its turn, or give it up if too many wait.  `run` has to call `end`."""
        assert attempt not in self._by_attempt
        request = Request(partial(self._run, run, attempt), frame_bytes)
        opening = Opening(trio.CancelScope(), request, give_up)
        # `begin` may start the request in this very call.
        self._by_attempt[attempt] = opening
        if not self._requests.begin(request):
            self.end(attempt)
            give_up(too_many_wait(self._requests))

    async def _run(
        self, run: Callable[[Opening], Awaitable[None]], attempt: int, _request: Request
    ) -> None:
        await run(self._by_attempt[attempt])

    def giving_way(self, opening: Opening) -> AbstractContextManager[None]:
        """Let other connections have the place of an opening inside the block, which only waits."""
        return self._requests.giving_way(opening.request)

    def abort(self, attempt: int) -> None:
        """Give up an opening that its client has closed.

        One that still waits for its turn is answered at once.
        """
        opening = self._by_attempt[attempt]
        if self._requests.withdraw(opening.request):
            self.end(attempt)
            opening.give_up(self.closed_early())
        else:
            # The task answers when the opening is undone; until then the id stays taken.
            opening.scope.cancel()

    def end(self, attempt: int) -> None:
        """Forget an opening that has succeeded or failed."""
        del self._by_attempt[attempt]

    def step_aside(self, opening: Opening) -> None:
        """Give the place of an opening to other requests: it waits for something that may last."""
        self._requests.step_aside(opening.request)

    def closed_early(self) -> UnavailableError:
        return UnavailableError(f"the {self._what} was closed before it was open")


def too_many_wait(queue: RequestQueue) -> UnavailableError:
    return UnavailableError(
        f"the request was not begun: {len(queue)} requests of this connection wait already, and"
        " neither it nor the broker has room for more; ask again after some have been answered"
    )
