"""A bookie process, with a real ZooKeeper; tests kill it."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

PATIENCE_S = 180.0


class BookieProcess:
    """A process started by the constructor; `wait_ready` reads its first line."""

    def __init__(self, config: Path, *, files: int | None = None) -> None:
        """`files` limits how many files the process may have open."""

        def limit() -> None:
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        with (config.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daybook.bookie.server", "--config", str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=limit,
            )
        self.ready: dict[str, Any] = {}

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    async def wait_ready(self) -> "BookieProcess":
        stdout = self.process.stdout
        assert stdout is not None
        with trio.fail_after(PATIENCE_S):
            line = await trio.to_thread.run_sync(stdout.readline, abandon_on_cancel=True)
        assert line, f"exit code {self.process.wait()}"
        self.ready = json.loads(line)
        return self

    async def wait(self) -> int:
        with trio.fail_after(PATIENCE_S):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
