"""Where the jars of Apache BookKeeper, Pulsar and Kafka are, and how to run them.

`make interop` puts the jars there, and `make bench-spark` those of Kafka.  Without them a
`RuntimeError` says so.
"""

import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    """A release of Apache BookKeeper, Kafka, or a part of Pulsar or Spark, that is here."""

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
    def pulsar_admin(cls, environment: Mapping[str, str]) -> "Apache":
        version = environment.get("PULSAR_ADMIN", "4.0.8")  # the newest one on Maven Central
        return cls._found(environment, "pulsar-client-tools", version, "pulsar-client-tools")

    @classmethod
    def kafka(cls, environment: Mapping[str, str]) -> "Apache":
        version = environment.get("KAFKA", "4.3.1")
        return cls._found(environment, "kafka", version, "kafka_2.13")

    @classmethod
    def spark_kafka(cls, environment: Mapping[str, str]) -> "Apache":
        version = environment.get("SPARK_KAFKA", "4.2.0")
        return cls._found(environment, "spark-kafka", version, "spark-sql-kafka")

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
        """Return the command that runs a class of the jars, or a program of ours (`.../X.java`)."""
        main, *others = words
        path = f"{self.jars}/*"
        if main.endswith(".java"):
            path, main = f"{self._classes(Path(main))}:{path}", Path(main).stem
        directory.mkdir(parents=True, exist_ok=True)
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J)
        return [
            *("java", *jvm, "-Djava.awt.headless=true"),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            *("-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j2.configurationFile={log4j}"),
            *("-cp", path, main, *others),
        ]

    def _classes(self, source: Path) -> Path:
        """Compile a program, once for each state of its source, and return where its classes are.

        Java would compile it at each start, which takes longer than many a program runs.
        """
        state = zlib.crc32(source.read_bytes())
        classes = self.jars.parent / "classes" / f"{self.jars.name}-{source.stem}-{state:08x}"
        if not classes.is_dir():
            classes.parent.mkdir(exist_ok=True)
            part = tempfile.mkdtemp(dir=classes.parent, prefix="part-")
            command = ["javac", "-nowarn", "-cp", f"{self.jars}/*", "-d", part, str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{source} does not compile:\n{done.stderr}")
            with suppress(OSError):  # Another process has just compiled it.
                Path(part).rename(classes)
            shutil.rmtree(part, ignore_errors=True)
        return classes


def apache_here() -> Apache:
    return Apache.found(os.environ)


def pulsar_here() -> Apache:
    return Apache.pulsar(os.environ)


def pulsar_client_here() -> Apache:
    return Apache.pulsar_client(os.environ)


def pulsar_broker_here() -> Apache:
    return Apache.pulsar_broker(os.environ)


def pulsar_admin_here() -> Apache:
    return Apache.pulsar_admin(os.environ)


def kafka_here() -> Apache:
    return Apache.kafka(os.environ)


def spark_kafka_here() -> Apache:
    return Apache.spark_kafka(os.environ)


def go_client() -> Path | None:
    """The program with Apache Pulsar's Go client; None if it was not built."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    built = Path(cache) / "daybook" / "interop" / "pulsar-go" / "client"
    return built if built.is_file() else None
