"""A child process that does not outlive us, however we end.

The kernel kills it when we die (Linux: PR_SET_PDEATHSIG).  That is bound to the *thread* that
started the child, so a child is started in the main thread, by `subprocess`; trio's own
`open_process` would take a worker thread, which ends when it is idle.  Elsewhere than on Linux, and
for a clean stop, there is a pipe on standard input that ends with us.

The child gets a session of its own: Ctrl-C in the terminal is for us, who stop things in order.
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
    """Started by the constructor; to be called in the main thread."""

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
        """The reading end of the pipe; a copy, that the caller owns."""
        assert self._popen.stdout is not None
        return trio.lowlevel.FdStream(os.dup(self._popen.stdout.fileno()))

    @property
    def exit_code(self) -> int | None:
        """As in `subprocess`: minus the signal if one ended it."""
        return self._popen.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
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
            code = self._popen.wait()
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
            return None  # Without a descriptor a thread can still wait.


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def after_fork() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It died before we asked to be told.
            os._exit(1)

    return after_fork


def describe_exit(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
