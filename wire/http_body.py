"""The body of an HTTP request on its way from its connection to the application.

Hypercorn puts each piece of a body into a channel for ten messages.  Its connection cannot end a
request while that channel is full and nobody takes anything from it.  A `RequestBody` takes the
place of that channel:

- An application that waits for the body gets all pieces that have come, as one message.
- Up to `PIECES_MAX` pieces wait for an application that does something else.
- The end of a connection never waits for the application, and lets a piece that waits go.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import trio

PIECES_MAX = 10
Message: TypeAlias = MutableMapping[str, Any]  # a message of ASGI


class RequestBody:
    """The pieces of one body.  One task puts them, and one task receives them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._complete = False  # The last piece has come.
        self._taken_all = False  # The application knows that.
        self._disconnected = False
        self._receiver: trio.Event | None = None  # set when there is something to receive
        self._putter: trio.Event | None = None  # set when pieces were taken

    @property
    def is_awaited(self) -> bool:
        """Return True if the application waits, and takes the next piece as soon as it comes."""
        return self._receiver is not None and not self._pieces

    async def put(self, message: Message) -> None:
        """Take a message for the application; return when there is room for another one."""
        if message["type"] == "http.disconnect":
            self._disconnected = True
            self._wake()
            self._let_put()
            await trio.lowlevel.checkpoint()
            return
        if message["body"]:
            self._pieces.append(message["body"])
        self._complete = not message["more_body"]
        self._wake()
        if not self._is_full():
            await trio.lowlevel.checkpoint()
        while self._is_full():
            self._putter = trio.Event()
            await self._putter.wait()

    def _is_full(self) -> bool:
        """Return True while no other piece should be read.

        A receiver that was woken takes the pieces at once, and then may wait for the next one.
        """
        if self._disconnected or not self._pieces:
            return False
        return self._receiver is not None or len(self._pieces) >= PIECES_MAX

    def _wake(self) -> None:
        if self._receiver is not None:
            self._receiver.set()

    async def receive(self) -> Message:
        """Return the next message for the application, as ASGI's `receive` does."""
        if self._has_message():
            await trio.lowlevel.checkpoint()
        while not self._has_message():
            self._receiver = trio.Event()
            try:
                await self._receiver.wait()
            finally:
                self._receiver = None
                self._let_put()
        if not self._pieces and (self._taken_all or not self._complete):
            return {"type": "http.disconnect"}
        pieces, self._pieces = self._pieces, []
        self._taken_all = self._complete
        self._let_put()
        return {
            "type": "http.request",
            "body": pieces[0] if len(pieces) == 1 else b"".join(pieces),
            "more_body": not self._complete,
        }

    def _has_message(self) -> bool:
        untold = self._complete and not self._taken_all
        return bool(self._pieces) or untold or self._disconnected

    def _let_put(self) -> None:
        if self._putter is not None:
            self._putter.set()


class Requests:
    """Stands for Hypercorn's task group, and gives each request a `RequestBody`."""

    def __init__(self, tasks: Any, on_request: Callable[[RequestBody], None]) -> None:  # noqa: ANN401
        self._tasks = tasks
        self._on_request = on_request

    async def spawn_app(
        self,
        app: Any,  # noqa: ANN401  the arguments are those of Hypercorn
        config: Any,  # noqa: ANN401
        scope: Any,  # noqa: ANN401
        send: Any,  # noqa: ANN401
    ) -> Callable[[Message], Awaitable[None]]:
        """Start the application; return the function to which the messages for it go."""
        body = RequestBody()
        self._on_request(body)

        async def with_body(scope: Any, _receive: Any, *others: Any) -> None:  # noqa: ANN401
            await app(scope, body.receive, *others)

        await self._tasks.spawn_app(with_body, config, scope, send)
        return body.put
