"""A `daybook standalone` as a child process: ZooKeeper, bookies and brokers that a test can kill.

    with StandaloneProcess() as cluster:
        client = daybook.blocking.connect(cluster.service_url)
        cluster.local("kill", "broker-1")

    with StandaloneProcess(secure=True) as cluster:
        client = daybook.blocking.connect(
            cluster.service_url, tls=cluster.tls, token=cluster.token
        )

Demonstrations, measurements and tests with real processes use it.  It takes seconds to start and
needs Java.  Without a directory the cluster is ephemeral: it uses free ports, and its data are
removed at the end.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from daybook.clients.cli.control import ask
from daybook.clients.python.tls import TlsOptions

STOP_TIMEOUT_S = 180.0
# Ports for a directory that is kept, other than the usual ones, which may be in use.
ANY_PORTS = ("--port", "0", "--admin-port", "0", "--zookeeper-port", "0")


class StandaloneProcess:
    """A standalone cluster that has started when the constructor returns.

    The constructor raises RuntimeError if the start fails.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        bookies: int = 3,
        brokers: int = 2,
        options: Sequence[str] = (),
        secure: bool = False,
    ) -> None:
        """With `secure`, all parts have TLS and ask who comes.

        Then `tls` and `token` are for brokers, and `storage_tls` is for bookies and ZooKeeper.
        """
        options = [*options, *(["--secure"] if secure else [])]
        where = ["--ephemeral"] if directory is None else ["--dir", str(directory)]
        self._process = subprocess.Popen(  # noqa: S603  our own command line
            [
                *(
                    sys.executable,
                    "-m",
                    "daybook.clients.cli.main",
                    "standalone",
                    "--output",
                    "json",
                ),
                *("--bookies", str(bookies), "--brokers", str(brokers), *where, *options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._stdout: IO[str] = self._process.stdout
        line = self._stdout.readline()
        if not line:
            raise RuntimeError(
                f"the standalone cluster did not start: exit code {self._process.wait()};"
                " standard error has the reason"
            )
        self.ready: dict[str, Any] = json.loads(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def service_url(self) -> str:
        return str(self.ready["service_url"])

    @property
    def admin_url(self) -> str:
        """The HTTP ports of all brokers as one URL: one of the brokers may be down."""
        return str(self.ready["admin_url"])

    @property
    def zookeeper(self) -> str:
        return str(self.ready["zookeeper"])

    @property
    def tls(self) -> TlsOptions | None:
        """The TLS for clients of a secure cluster; None for a cluster without TLS."""
        trusted = self.ready["trusted"]
        return None if trusted is None else TlsOptions(trusted=trusted)

    @property
    def storage_tls(self) -> TlsOptions | None:
        """The TLS for bookies and ZooKeeper, with the admin's certificate; None if they are open.

        A ZooKeeper that the cluster uses, and has not started, is not meant.
        """
        file = self.ready["certificate"]
        return None if file is None else TlsOptions(self.ready["trusted"], file, file)

    @property
    def token(self) -> str | None:
        """The URL of the file with the admin's token of a secure cluster; else None."""
        file = self.ready["token_file"]
        return None if file is None else Path(file).as_uri()

    @property
    def directory(self) -> Path:
        return Path(self.ready["dir"])

    def local(self, command: str, name: str) -> dict[str, Any]:
        """Run `daybook local COMMAND NAME` (status, kill, stop, ...), and return the part."""
        (part,) = ask(self.directory, command, name)
        return part

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts as `daybook local status` shows them."""
        return ask(self.directory, "status", None)

    def stop(self) -> int:
        """Send Ctrl-C, wait, and return the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._stdout.close()
        return int(self._process.returncode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
