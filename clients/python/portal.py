"""A thread that runs trio, for callers that do not: functions go in, results come out.

`call` runs an async function in that thread and waits for it; an interrupt of the caller cancels
the call.  `soon` hands over a function that needs no answer: calls keep their order, and the caller
pays for an append only.  A `Block` is an `async with` that lasts from one call to another.

A program may end without closing anything.  Then the work that it has handed over is finished, for
`EXIT_S` at most; standard error says how much was not, and the program fails (`_finish_all`).

A caller that would wait forever gets an error instead: a call in the portal's own thread (where
callbacks of futures run), and any use in a forked process, which has a copy of everything but the
thread.
"""

import atexit
import inspect
import os
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TextIO, TypeVar, cast

import trio

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
EXIT_S = 5.0  # how long the end of a program waits for what it has handed over
_INSTEAD = {
    "trio": "use the client without `blocking`, as in `async with daybook.connect(...)`",
    "asyncio": "use daybook.aio, as in `async with daybook.aio.connect(...)`",
}
_QUIET_S = 0.5  # after which it says what it waits for
_WAKE_S = 1.0  # how often a waiting caller looks for signals
_CALLBACKS_S = 1.0  # ... and then for callbacks, which hear that it was not done


class Portal:
    """A thread with an event loop, which runs until `close`."""

    def __init__(
        self,
        *,
        closed: Callable[[str], Exception] = trio.ClosedResourceError,
        cut: Callable[[str], Exception] = trio.ClosedResourceError,
    ) -> None:
        """`closed` makes the error of a call that was not begun, `cut` of one that was."""
        self._closed_error = closed
        self._cut_error = cut
        self._soon: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._closed = False
        self._warned = False  # about an event loop in the thread of a caller
        self._process = os.getpid()
        self._unfinished: dict[object, _Unfinished] = {}
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="daybook-client", daemon=True)
        self._thread.start()
        self._started.result()

    @property
    def is_here(self) -> bool:
        """Return True in the thread that runs trio."""
        return threading.current_thread() is self._thread

    @property
    def closed(self) -> bool:
        """Return True once `close` was called."""
        return self._closed

    def check_thread(self) -> None:
        """Raise RuntimeError in the thread that runs trio: it would wait for itself."""
        if self.is_here:
            raise RuntimeError(
                "a callback runs in the thread of the client, where no call of the client may"
                " wait: use another thread"
            )

    def check_process(self) -> None:
        """Raise an error in a process that was forked."""
        if self.was_forked:
            raise self._closed_error(
                f"this client belongs to process {self._process}, from which this process was"
                " forked: connect again in this process"
            )

    @property
    def was_forked(self) -> bool:
        """Return True in a process that was forked: the thread is not in it."""
        return os.getpid() != self._process

    def finish_at_exit(
        self, owner: object, finish: Callable[[], Awaitable[None]], left: Callable[[], str]
    ) -> None:
        """Have `finish` called when the program ends, unless `finished` is called before.

        The latest registration comes first.  `left` is called afterwards and returns, in words,
        what is still not done, or "".
        """
        self._unfinished[owner] = _Unfinished(finish, left)
        _open_portals.add(self)

    def finished(self, owner: object) -> None:
        """Forget the registration of `owner`.  Idempotent."""
        self._unfinished.pop(owner, None)

    def finish(self) -> list[str]:
        """Finish what is registered, for `EXIT_S` at most; return what is not done, in words."""
        unfinished = list(reversed(self._unfinished.values()))
        if self.was_forked or self._closed or self.is_here or not unfinished:
            return []

        failures: dict[int, str] = {}

        async def say_what_is_waited_for() -> None:
            await trio.sleep(_QUIET_S)
            if left := "; ".join(filter(None, (each.left() for each in unfinished))):
                _say(f"the program ends; waiting {EXIT_S:g} s at most: {left}")

        async def finish_all() -> None:
            with trio.move_on_after(EXIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(say_what_is_waited_for)
                    for index, each in enumerate(unfinished):
                        try:
                            await each.finish()
                        except Exception as error:  # The others are finished all the same.
                            failures[index] = f"{type(error).__name__}: {error}"
                    nursery.cancel_scope.cancel()

        # A second Ctrl-C: the user does not want to wait.  Or another thread closes the client just
        # now, and so tells everybody.
        with suppress(KeyboardInterrupt, Exception):
            self.call(finish_all)
        found: list[str] = []
        for index, each in enumerate(unfinished):
            left, failure = each.left(), failures.get(index, "")
            if left or failure:
                found.append(f"{left} ({failure})" if left and failure else left or failure)
        return found

    def call(
        self,
        function: Callable[..., Awaitable[_T]],
        *arguments: Any,  # noqa: ANN401
        unwanted: Callable[[_T], None] | None = None,
    ) -> _T:
        """Run `function` in the portal's thread; return its result or raise its error.

        If the caller is interrupted, `unwanted` is called there with the result of `function`.
        """
        if self._closed:
            raise self._closed_error("the client is closed")
        self.check_process()
        self.check_thread()
        if not self._warned and (loop := _event_loop_here()):
            self._warned = True
            warnings.warn(
                f"a blocking call in a thread that runs {loop} stops all tasks there until it"
                f" returns: {_INSTEAD[loop]}",
                RuntimeWarning,
                stacklevel=3,
            )
        result: Future[_T] = Future()
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    result.set_result(await function(*arguments))
            except trio.Cancelled:
                raise
            except BaseException as error:  # The caller gets the error; the thread continues.
                result.set_exception(error)
            finally:
                # The caller waits without a timeout: every way out of here sets a result.
                if not result.done():
                    result.set_exception(self._cut_error("the client was closed meanwhile"))

        def begin() -> None:
            if self._nursery.cancel_scope.cancel_called:  # Closed by another thread, just now.
                result.set_exception(self._closed_error("the client was closed meanwhile"))
            else:
                self._nursery.start_soon(run)

        try:
            self._token.run_sync_soon(begin)
            return _wait_for(result)
        except trio.RunFinishedError:
            raise self._closed_error("the client was closed meanwhile") from None
        except KeyboardInterrupt:

            def interrupt() -> None:
                scope.cancel()
                if unwanted is not None:
                    result.add_done_callback(partial(_give_up, unwanted))

            self._token.run_sync_soon(interrupt)
            raise

    def soon(self, function: Callable[[], None]) -> None:
        """Run `function`, which must not raise, in the portal's thread; do not wait for it."""
        self.check_process()
        if self._closed:
            raise self._closed_error("the client is closed")
        self._soon.append(function)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._token.run_sync_soon(self._do_soon)
            except trio.RunFinishedError:
                raise self._closed_error("the client was closed meanwhile") from None
            except BaseException:  # Ctrl-C, perhaps: the next caller has to schedule again.
                self._scheduled = False
                raise

    def _do_soon(self) -> None:
        # Before the queue is read: a caller that appends from now on schedules again.
        self._scheduled = False
        while self._soon:
            self._soon.popleft()()

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run `function`, which must not raise, in the portal's thread until `close`."""
        if self.is_here:
            self._nursery.start_soon(function)  # Not by the token: `close` may come first.
        else:
            self._token.run_sync_soon(self._nursery.start_soon, function)

    def close(self, timeout_s: float | None = None) -> None:
        """Cancel all tasks of the portal; return when they have ended, or after `timeout_s`."""
        if self._closed:
            return
        self.check_thread()
        self._closed = True
        _open_portals.discard(self)
        if not self.was_forked:
            with suppress(trio.RunFinishedError):  # It has ended by an error of its own.
                self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            self._started.set_result(None)
            await trio.sleep_forever()


def _event_loop_here() -> str:
    """Return "trio" or "asyncio" if one of them runs in this thread, or else "".

    A notebook runs its cells in a loop of asyncio on purpose, and none of its tasks is in a hurry.
    """
    if trio.lowlevel.in_trio_run():
        return "trio"
    if "asyncio" in sys.modules and "ipykernel" not in sys.modules:
        with suppress(RuntimeError):
            sys.modules["asyncio"].get_running_loop()
            return "asyncio"
    return ""


def _wait_for(result: "Future[_T]") -> _T:
    """Return the result, or raise its error; notice Ctrl-C within `_WAKE_S`.

    The kernel may hand a signal to another thread.  A wait without a timeout would then go on: the
    main thread looks for signals only when it wakes.
    """
    while True:
        try:
            return result.result(_WAKE_S)
        except TimeoutError:
            if result.done():  # The call has ended, perhaps with a `TimeoutError` of its own.
                return result.result()


def _give_up(unwanted: Callable[[_T], None], result: "Future[_T]") -> None:
    if result.exception() is None:
        unwanted(result.result())


@dataclass(frozen=True, slots=True)
class _Unfinished:
    finish: Callable[[], Awaitable[None]]
    left: Callable[[], str]


_open_portals: set[Portal] = set()


@atexit.register
def _finish_all() -> None:
    """Finish what the program has handed over, as it ends: daemon threads still run now."""
    lost = False
    for portal in list(_open_portals):
        for left in portal.finish():
            lost = True
            _say(
                f"the program ended before everything was done: {left}.  Call flush() or close(),"
                " or use a `with` block, to wait, and to get the errors."
            )
        if not portal.was_forked:
            with suppress(KeyboardInterrupt):
                portal.close(_CALLBACKS_S)
    if lost and sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = cast("TextIO", _FailedStream(sys.stderr))


def _say(text: str) -> None:
    """Write to standard error: there may be no log, and nobody else is left to tell."""
    print(f"daybook: {text}", file=sys.stderr)  # noqa: T201


class _FailedStream:
    """Stands for standard error when something was lost, so that the program fails: exit code 120.

    A handler of `atexit` cannot set the exit code, and `os._exit` would cut off the handlers behind
    it.  But the interpreter flushes standard error last of all, and ends with 120, "an error in the
    cleanup" (see `sys.exit`), if that fails.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        frame = inspect.currentframe()
        if frame is not None and frame.f_back is None:  # Only the interpreter calls from nowhere.
            raise OSError("something was lost at the end of the program")


class Block(Generic[_T]):
    """An `async with` block in a task of its own.

    `run` is given to `Portal.start`; `opened` waits until the block is entered; `close` leaves it.
    """

    def __init__(self, manager: AbstractAsyncContextManager[_T]) -> None:
        self._manager = manager
        self._made: list[_T] = []
        self._failure: Exception | None = None
        self._entered, self._leave, self._left = trio.Event(), trio.Event(), trio.Event()

    async def run(self) -> None:
        try:
            async with self._manager as made:
                self._made.append(made)
                self._entered.set()
                await self._leave.wait()
        except Exception as error:
            self._failure = error
        finally:
            self._entered.set()
            self._left.set()

    async def opened(self) -> _T:
        """Return what the block was entered with; raise the error of entering it."""
        await self._entered.wait()
        if not self._made:
            assert self._failure is not None
            raise self._failure
        return self._made[0]

    def leave_soon(self) -> None:
        """Have the block left, without waiting for it."""
        self._leave.set()

    async def close(self) -> None:
        """Leave the block; raise the error of leaving it."""
        self._leave.set()
        await self._left.wait()
        if self._failure is not None:
            raise self._failure


class Drain:
    """Empties a queue in the portal's thread after `soon` was called, by one task at a time.

    If it is made in the portal's thread, `ended` is called exactly once: after `end`, or when the
    portal is closed.
    """

    def __init__(
        self,
        portal: Portal,
        empty: Callable[[], Awaitable[None]],
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._portal = portal
        self._empty = empty
        self._on_ended = ended
        self._lock = trio.Lock()
        self._wanted = trio.Event()
        self._ended = False
        portal.start(self._run)

    def soon(self) -> None:
        """Have the queue emptied soon.  Called from any thread, at the cost of an append."""
        self._portal.soon(self._wake)

    async def now(self) -> None:
        """Return when everything that is in the queue now has left it."""
        async with self._lock:
            await self._empty()

    def end(self) -> None:
        """End the task; from now on `soon` does nothing.  Called in the portal's thread."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._wanted.set()

    async def _run(self) -> None:
        try:
            while not self._ended:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self.now()
        finally:  # The portal may have been closed.
            if self._on_ended is not None:
                self._on_ended()


def like(original: Callable[..., object]) -> Callable[[_F], _F]:
    """Give a method the help of the method of the trio client that it calls."""

    def document(method: _F) -> _F:
        method.__doc__ = method.__doc__ or original.__doc__
        vars(method)["__signature__"] = inspect.signature(original)
        return method

    return document


class Closing(ABC):
    """A context manager that calls `close` at the end of the block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
