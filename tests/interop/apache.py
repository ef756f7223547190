"""Where the jars of Apache BookKeeper and Pulsar are, and how to run them.

`make interop` puts the jars there; without them a `RuntimeError` says so.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """A release of Apache BookKeeper, or of a part of Pulsar, that is here."""

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
    def pulsar_broker(cls, environment: Mapping[str, str]) -> "Apache":
        version = environment.get("PULSAR", "4.2.4")
        return cls._found(environment, "pulsar-broker", version, "pulsar-broker")

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


def apache_here() -> Apache:
    return Apache.found(os.environ)


def pulsar_here() -> Apache:
    return Apache.pulsar(os.environ)


def pulsar_client_here() -> Apache:
    return Apache.pulsar_client(os.environ)


def pulsar_broker_here() -> Apache:
    return Apache.pulsar_broker(os.environ)


def go_client() -> Path | None:
    """The program with Apache Pulsar's Go client; None if it was not built."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    built = Path(cache) / "daybook" / "interop" / "pulsar-go" / "client"
    return built if built.is_file() else None
