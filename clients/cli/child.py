"""A child process that does not outlive this process, however this process ends.

On Linux the kernel kills the child when its parent dies (PR_SET_PDEATHSIG).  The parent is the
*thread* that started the child, so `subprocess` starts it in the main thread; trio's
`open_process` would use a worker thread, which ends when it is idle.  On other systems, and for a
clean stop, the child watches a pipe on its standard input that closes with this process.

The child gets its own session, so Ctrl-C in the terminal reaches only this process, which stops the
parts in order.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import trio

_PR_SET_PDEATHSIG = 1


class Child:
    """The constructor starts the process; it must be called in the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes],
        pipe_stdout: bool,
        environ: Mapping[str, str],
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if pipe_stdout else output,
            stderr=output,
            start_new_session=True,
            env=dict(environ),
            preexec_fn=_die_with_parent(),
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def open_stdout(self) -> trio.lowlevel.FdStream:
        """Return a copy of the reading end of the pipe; the caller owns it."""
        assert self._popen.stdout is not None
        return trio.lowlevel.FdStream(os.dup(self._popen.stdout.fileno()))

    @property
    def exit_code(self) -> int | None:
        """The exit code as in `subprocess`: negative if a signal ended the process."""
        return self._popen.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process has ended."""
        self._popen.send_signal(number)

    async def wait(self) -> int:
        """Return the exit code when it has ended."""
        pid_fd = self._open_pidfd()
        if pid_fd is not None:
            try:
                await trio.lowlevel.wait_readable(pid_fd)
            finally:
                trio.lowlevel.notify_closing(pid_fd)
                os.close(pid_fd)
            code = self._popen.wait()  # returns at once: a readable pidfd means that it has ended
        else:
            code = await trio.to_thread.run_sync(self._popen.wait, abandon_on_cancel=True)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def _open_pidfd(self) -> int | None:
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            return None  # `wait` uses a thread then.


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def after_fork() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl: no signal will come
            os._exit(1)

    return after_fork


def describe_exit(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
