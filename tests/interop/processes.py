"""Processes of both kinds, waiting for their actions, and the place of Apache's jars.

The jars are where `make interop` has put them; without them no process starts, with an error that
says so.  Processes end with the test session, however it ends.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # a machine may be busy
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1

Process: TypeAlias = "subprocess.Popen[str]"

_OPENED = (
    *("java.base/java.lang", "java.base/java.io", "java.base/java.nio", "java.base/java.util.zip"),
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.loader", "java.base/sun.net"),
)
SMALL_JVM = (
    *("-Xmx128m", "-XX:MaxDirectMemorySize=128m", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
)
_LOG4J = """\
status=error
appender.err.type=Console
appender.err.name=err
appender.err.target=SYSTEM_ERR
appender.err.layout.type=PatternLayout
appender.err.layout.pattern=%d{ISO8601} [%t] %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.err.ref=err
"""


@dataclass(frozen=True, slots=True)
class Apache:
    """An installed release of Apache BookKeeper, of Pulsar's managed ledgers or its client."""

    version: str
    jars: Path

    @classmethod
    def found(cls, environment: Mapping[str, str]) -> "Apache":
        version = environment.get("BOOKKEEPER", "4.18.0")
        return cls._found(environment, "bookkeeper", version, "bookkeeper-server")

    @classmethod
    def pulsar(cls, environment: Mapping[str, str]) -> "Apache":
        return cls._found(
            environment, "pulsar", environment.get("PULSAR", "4.2.4"), "managed-ledger"
        )

    @classmethod
    def pulsar_client(cls, environment: Mapping[str, str]) -> "Apache":
        return cls._found(
            environment, "pulsar-client", environment.get("PULSAR", "4.2.4"), "pulsar-client"
        )

    @classmethod
    def _found(
        cls, environment: Mapping[str, str], product: str, version: str, proof: str
    ) -> "Apache":
        cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        jars = Path(cache) / "daybook" / "interop" / f"{product}-{version}"
        if not list(jars.glob(f"{proof}-*.jar")):
            raise RuntimeError(f"{jars} holds no {proof}: `make interop` fetches it")
        return cls(version, jars)

    def command(self, directory: Path, *words: str, jvm: Sequence[str] = SMALL_JVM) -> list[str]:
        directory.mkdir(parents=True, exist_ok=True)
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J)
        return [
            *("java", *jvm, "-Djava.awt.headless=true"),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            *("-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j2.configurationFile={log4j}"),
            *("-cp", f"{self.jars}/*", *words),
        ]


def start(command: Sequence[str], log: Path) -> Process:
    """Start a child with pipes to its standard input and output; its log goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stderr:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=_die_with_parent,
        )


def run_daybook(log: Path, *words: str) -> Process:
    """Run `daybook WORDS` as a child."""
    return start([sys.executable, "-m", "daybook.clients.cli.main", *words], log)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    if process.poll() is None:
        process.send_signal(number)
    process.wait(PATIENCE_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


class Condition(Protocol):
    def __call__(self) -> bool: ...


def wait_until(condition: Condition, what: str) -> None:
    """Poll for a change that other processes make without a notice."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(_POLL_S)


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def apache_here() -> Apache:
    return Apache.found(os.environ)


def pulsar_here() -> Apache:
    return Apache.pulsar(os.environ)


def pulsar_client_here() -> Apache:
    return Apache.pulsar_client(os.environ)


def go_client() -> Path | None:
    """Return the program with Apache Pulsar's Go client; None if it was not built."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    built = Path(cache) / "daybook" / "interop" / "pulsar-go" / "client"
    return built if built.is_file() else None
