"""Processes that tests start, wait for, and end.

A process gets pipes for its standard input and output, and its log goes into a file.  It ends with
the test session, however that ends.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeAlias

import trio

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # the machine may be busy
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1

DAYBOOK = (sys.executable, "-m", "daybook.clients.cli.main")

Process: TypeAlias = "subprocess.Popen[str]"


def start(
    command: Sequence[str],
    log: Path,
    *,
    environ: Mapping[str, str] | None = None,
    files: int | None = None,
) -> Process:
    """Start a child in the root of the repository; `files` limits how many it may have open."""
    # The kernel sends the signal when the thread that started the child ends.
    dies_with_parent = threading.current_thread() is threading.main_thread()

    def prepare() -> None:
        if dies_with_parent and sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stderr:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=prepare,
        )


def run_daybook(log: Path, *words: str) -> Process:
    """Start `daybook WORDS`."""
    return start([*DAYBOOK, *words], log)


def daybook(
    *words: str, environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `daybook WORDS` and return what it printed."""
    return subprocess.run(
        [*DAYBOOK, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environ,
    )


def end(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    """Send the signal to a process that still runs, wait for its end, and close its pipes."""
    if process.poll() is None:
        process.send_signal(number)
    process.wait(PATIENCE_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a change that another process makes without telling anybody."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(_POLL_S)


def is_open(port: int) -> bool:
    """Return True if a process listens on this port of the loopback interface."""
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def http_get(url: str, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
    """Return the status and the body, also of an error."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class ServerProcess:
    """`python -m MODULE ARGUMENTS`, which prints one line of JSON when it is ready.

    `wait_ready` or `read_ready` reads that line.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        environ: Mapping[str, str] | None = None,
        files: int | None = None,
    ) -> None:
        self.log = log
        command = [sys.executable, "-m", module, *arguments]
        self.process = start(command, log, environ=environ, files=files)
        self.ready: dict[str, Any] = {}

    @classmethod
    def broker(
        cls,
        log: Path,
        *,
        module: str = "daybook.broker",
        files: int | None = None,
        **settings: object,
    ) -> Self:
        """Start a broker with these settings, on free ports."""
        values = {"port": 0, "http_port": 0, **settings}
        environ = {f"DAYBOOK_BROKER_{name.upper()}": str(v) for name, v in values.items()}
        return cls(module, log=log, environ={**os.environ, **environ}, files=files)

    @classmethod
    def bookie(cls, config: Path, *, files: int | None = None) -> Self:
        """Start a bookie with this file of settings; its log is beside the file."""
        arguments = ("--config", str(config))
        return cls("daybook.bookie.server", *arguments, log=config.parent / "log", files=files)

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def http_port(self) -> int:
        return int(self.ready["http_port"])

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def limit_files(self, files: int) -> None:
        """Change how many files the process may have open while it runs."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, hard))

    def read_ready(self) -> Self:
        """Wait until it is ready.  Fail if it ends before."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"exit code {self.process.wait()}: {self.log.read_text()}"
        self.ready = json.loads(line)
        return self

    async def wait_ready(self) -> Self:
        """Wait until it is ready.  Fail if it ends before."""
        with trio.fail_after(PATIENCE_S):
            return await trio.to_thread.run_sync(self.read_ready, abandon_on_cancel=True)

    async def wait(self) -> int:
        """Return the exit code, once it has ended by itself."""
        with trio.fail_after(PATIENCE_S):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def kill(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        end(self.process)
