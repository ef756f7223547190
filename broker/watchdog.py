"""The shell of `protocol.watchdog`: two threads that work while the event loop is stuck.

One thread probes the broker's own port again and again, with a longer timeout than a readiness
probe has: a late answer is an answer.  The other thread ticks, and carries out the effects of the
machine.  Before the process ends, the stacks of all threads and tasks are written to standard
error.  If that blocks, because nobody reads standard error, the process ends all the same.
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic  # noqa: TID251  these threads have no event loop
from typing import TextIO

import trio

from daybook.broker.ownership.membership import Member
from daybook.broker.ownership.peers import serves
from daybook.broker.protocol.watchdog import Effect, WatchdogLimits, WatchdogProtocol
from daybook.broker.security.broker_token import BrokerToken
from daybook.wire.logging import Log
from daybook.wire.probe import NoAnswerError, NotAskedError, PortProbe
from daybook.wire.tls import TlsClient

EXIT_CODE = 4
_SCHEDSTAT = Path("/proc/self/schedstat")
_PATIENCE_SHARE = 1 / 3  # the share of the time without an answer that one probe may take
_PAUSE_SHARE = 1 / 12
_WRITING_S = 5.0
_OTHERS_ASKED_MAX = 8
_FRAMES_MAX = 50  # frames of one task; endless recursion must not fill the log


class Watchdog:
    """The watchdog of one process.

    `others` returns the other registered brokers; None while there is no contact with the metadata
    store.  It is called in a thread.
    """

    def __init__(
        self,
        probe: PortProbe,
        limits: WatchdogLimits,
        *,
        broker_id: str,
        others: Callable[[], Sequence[Member] | None],
        log: Log,
        tls: TlsClient | None = None,
        prefers_tls: bool = False,
        token: BrokerToken | None = None,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._probe = probe
        self._limits = limits
        self._broker_id = broker_id
        self._others = others
        self._log = log
        self._tls = tls
        self._prefers_tls = prefers_tls
        self._token = token or BrokerToken()
        self._end = end
        self._machine = WatchdogProtocol(limits, now_s=monotonic())
        self._lock = threading.Lock()  # held around each call of the machine
        self._stopped = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        root = trio.lowlevel.current_root_task()
        for work in (self._ask_own_port, lambda: self._tick(root)):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()
        try:
            await trio.sleep_forever()
        finally:
            self._stopped.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._log.error(
                "the watchdog has failed and no longer watches this broker: restart the broker,"
                " and report this bug",
                exc_info=error,
            )
            self._stopped.set()

    def _ask_own_port(self) -> None:
        machine, limits = self._machine, self._limits
        while not self._stopped.is_set():
            try:
                self._probe.ask(limits.silent_s * _PATIENCE_SHARE)
            except NotAskedError:
                heard: Callable[[float], None] | None = machine.not_asked
            except NoAnswerError:
                heard = None
            else:
                heard = machine.answered
            if heard is not None:
                with self._lock:
                    heard(monotonic())
            self._stopped.wait(limits.silent_s * _PAUSE_SHARE)

    def _tick(self, root: trio.lowlevel.Task | None) -> None:
        while not self._stopped.wait(self._limits.tick_s):
            with self._lock:
                effects = self._machine.ticked(monotonic(), _starved_s())
            if Effect.ASK in effects:
                serve = self._do_others_serve()
                with self._lock:
                    effects = self._machine.others_serve(serve, monotonic())
                if Effect.END not in effects and not self._stopped.is_set():
                    self._log.error(
                        "this broker answers nobody, and continues because no other broker is"
                        " known to serve: restart it if this does not end"
                    )
            if Effect.END in effects and not self._stopped.is_set():
                self._end_process(root)

    def _do_others_serve(self) -> bool | None:
        """Return True if one of the other registered brokers would be left when this one ends."""
        others = self._others()
        if others is None:
            return None
        silent: list[str] = []
        for member in others[:_OTHERS_ASKED_MAX]:
            match serves(member, self._token, self._tls, prefers_tls=self._prefers_tls):
                case True:
                    return True
                case None:
                    silent.append(member.broker_id)
                case False:
                    pass  # It may be dead, with a registration that is about to end.
        # All are stuck.  The one with the lowest id ends first; the others end when it serves
        # again.  So they are never down at the same time.
        return bool(silent) and self._broker_id < min(silent)

    def _end_process(self, root: trio.lowlevel.Task | None) -> None:
        def write() -> None:
            self._log.error(
                "this broker answers nobody and ends, so that its supervisor restarts it; the"
                " stacks of its threads and tasks follow",
                silent_s=self._limits.silent_s,
                exit_code=EXIT_CODE,
            )
            write_stacks(root, sys.stderr)

        writing = threading.Thread(target=write, daemon=True)
        # A daemon thread: if writing blocks, the process still ends.
        writing.start()
        writing.join(_WRITING_S)
        self._stopped.set()
        self._end(EXIT_CODE)


def write_stacks(root: trio.lowlevel.Task | None, file: TextIO) -> None:
    """Write the stacks of all threads, and the tree of trio's tasks with their stacks.

    The tasks may run meanwhile: this is a snapshot for people, taken from another thread.
    """
    faulthandler.dump_traceback(file, all_threads=True)
    if root is not None:
        file.writelines(_lines(root, 0))
    file.flush()


def _lines(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    """Yield the lines of a task and of all tasks below it, without recursion."""
    waiting: list[tuple[trio.lowlevel.Task, int]] = [(task, depth)]
    while waiting:
        task, depth = waiting.pop()
        indent = "  " * depth
        yield f"{indent}task {task.name}\n"
        try:
            for frame in _frames(task):
                yield f"{indent}  {frame}\n"
        except (RuntimeError, ValueError) as error:  # The task has run while its frames were read.
            yield f"{indent}  ({error})\n"
        for nursery in task.child_nurseries:
            waiting += [(child, depth + 1) for child in nursery.child_tasks]


def _frames(task: trio.lowlevel.Task) -> Iterable[str]:
    for number, (frame, line) in enumerate(task.iter_await_frames()):
        if number == _FRAMES_MAX:
            yield "..."
            return
        code = frame.f_code
        yield f"{code.co_filename}:{line} {code.co_qualname}"


def _starved_s() -> float | None:
    """Return how long the main thread, which runs the loop, has waited for a processor."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None  # Not Linux, or a kernel without it; late ticks still show a stopped process.
