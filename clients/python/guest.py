"""Runs trio on top of an event loop of asyncio, in the same thread, while a client is open there.

trio runs as a guest: asyncio calls it whenever it has something to do.  No application code and no
code of the client runs in another thread, so nothing needs a lock and no thread can wait for
another one.  (trio lets a helper thread wait for the sockets, and that thread does nothing else.)
Functions of the client that do not wait are called directly; `call` is for those that wait.

    cancellation    when a call is cancelled, the function behind it is cancelled, and the call ends
                    when the function has ended.  If the function was done already, its result is
                    handed to `unwanted`, so a cancelled call has taken nothing.
    another loop    a call from another loop or thread is an error, and does not wait
    fork            a call in a forked process is an error, and does not wait

All clients of a loop share one guest, because a thread can run trio only once.  It ends with the
last client.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import trio

from daybook.clients.python.errors import ClosedError
from daybook.clients.python.fork import Birth

_T = TypeVar("_T")
_guests: "WeakKeyDictionary[asyncio.AbstractEventLoop, Guest]" = WeakKeyDictionary()


class Guest:
    """trio in one event loop.  `enter` finds or makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._birth = Birth()
        self._users = 0
        self._nursery: trio.Nursery | None = None
        self._started: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    @classmethod
    async def enter(cls) -> "Guest":
        """Return the guest of the running loop; call `leave` when it is no longer needed."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "daybook.aio runs under asyncio only: start the program with asyncio.run(main()),"
                " or use daybook.connect and daybook.admin.Admin under trio, or daybook.blocking"
            ) from None
        while True:
            guest = _guests.get(loop)
            if guest is None:
                guest = _guests[loop] = cls(loop)
                try:
                    guest._start()
                except BaseException:
                    del _guests[loop]
                    raise
            if guest._users or not guest._started.done():
                break
            await asyncio.shield(guest._ended)  # The last client leaves just now.
        guest._users += 1
        try:
            await asyncio.shield(guest._started)
        except BaseException:
            guest._user_left()
            raise
        return guest

    def _start(self) -> None:
        try:
            trio.lowlevel.start_guest_run(
                self._main,
                run_sync_soon_threadsafe=self._loop.call_soon_threadsafe,
                done_callback=lambda _: self._done(),
                host_uses_signal_set_wakeup_fd=True,
                restrict_keyboard_interrupt_to_checkpoints=True,
            )
        except RuntimeError as error:
            raise RuntimeError(
                "trio runs in this thread already, and a thread can run it only once: use"
                " daybook.connect in that trio program instead of daybook.aio.connect"
            ) from error

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if not self._started.done():
                self._started.set_result(None)
            await trio.sleep_forever()

    def _done(self) -> None:
        _guests.pop(self._loop, None)
        self._nursery = None
        if not self._ended.done():
            self._ended.set_result(None)

    def _user_left(self) -> None:
        self._users -= 1
        if not self._users and self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def leave(self) -> None:
        """End trio if no other client uses it, and return when it has ended."""
        self._user_left()
        if not self._users:
            await asyncio.shield(self._ended)

    def check(self) -> None:
        """Raise an error if this is another process or another loop than the guest's."""
        self._birth.check()
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            raise RuntimeError(
                "this client belongs to another event loop: connect in the loop that uses it"
            )

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run `function`, which must not raise, until it ends or the guest does."""
        assert self._nursery is not None
        self._nursery.start_soon(function)

    async def call(
        self,
        function: Callable[..., Awaitable[_T]],
        *arguments: Any,  # noqa: ANN401
        unwanted: Callable[[_T], None] | None = None,
    ) -> _T:
        """Run `function` under trio; return its result or raise its error.  See the module."""
        self.check()
        if self._nursery is None:
            raise ClosedError("the client is closed")
        scope, call = trio.CancelScope(), _Call[_T]()

        async def run() -> None:
            try:
                with scope:
                    call.result = await function(*arguments)
                    call.succeeded = True
            except trio.Cancelled:
                raise
            except BaseException as error:  # The caller gets it; the other calls go on.
                call.error = error
            finally:
                call.settle()

        self._nursery.start_soon(run)
        try:
            await call.wait(self._loop)
        except asyncio.CancelledError:
            scope.cancel()
            while not call.settled:
                try:
                    await call.wait(self._loop)
                except asyncio.CancelledError:  # Once more: the function ends all the same.
                    continue
            if call.succeeded and unwanted is not None:
                unwanted(call.value)
            raise
        if call.error is not None:
            raise call.error
        if not call.succeeded:
            raise ClosedError("the client was closed meanwhile")
        return call.value


class _Call(Generic[_T]):
    """A call under way, and its outcome."""

    def __init__(self) -> None:
        self.result: _T | None = None
        self.succeeded = False
        self.error: BaseException | None = None
        self.settled = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def value(self) -> _T:
        return cast("_T", self.result)

    def settle(self) -> None:
        self.settled = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.settled:
            self._waiter = loop.create_future()
            await self._waiter


async def wait_for_asyncio(loop: asyncio.AbstractEventLoop, awaited: Awaitable[_T]) -> _T:
    """Run an awaitable of asyncio for a task of trio; return its result or raise its error.

    If the task of trio is cancelled, so is the awaitable, and the task waits until it has ended.
    """

    async def run() -> _T:
        return await awaited

    task = loop.create_task(run())
    ended = trio.Event()
    task.add_done_callback(lambda _: ended.set())
    try:
        await ended.wait()
    except trio.Cancelled:
        task.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()
        raise
    if task.cancelled():  # Nobody here cancelled it, so this is an error like any other.
        raise RuntimeError("the function of the application was cancelled")
    return task.result()
