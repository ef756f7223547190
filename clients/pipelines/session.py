"""The Spark session of a command: Spark as its own settings say, or on this machine.

A session of a command writes little to standard error: `log4j2.properties` beside this file says
what.  Users who set up the log of Spark themselves (`spark.log.level`, `log4j2.properties` in
Spark's `conf`, `-Dlog4j2.configurationFile`, LOG4J_CONFIGURATION_FILE) have theirs.
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",  # it would write over the lines of the command
}
_LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": "4",  # each is a store of state, also for few rows
}
_LOG = Path(__file__).with_name("log4j2.properties")
_LOG_VARIABLE = "LOG4J_CONFIGURATION_FILE"
_LEVEL = "spark.log.level"
# Java says this of each Spark, before a log is there.
_HARMLESS = (b"WARNING: Using incubator modules: jdk.incubator.vector\n",)
_STDERR = 2
_GIVEN_JAVA = "PYSPARK_GATEWAY_PORT"  # set by `spark-submit`, which has started Java


def is_remote(settings: Mapping[str, str]) -> bool:
    """Return True if another process has the driver, which is that of Spark Connect."""
    return bool(settings.get("spark.remote") or os.environ.get("SPARK_REMOTE"))


@contextmanager
def spark_session(name: str, settings: Mapping[str, str]) -> Iterator["SparkSession"]:
    """Open a session that knows the format `daybook`, and close it in the end.

    `settings` go before all others.  Raise ModuleNotFoundError without PySpark.
    """
    from pyspark.sql import SparkSession

    from daybook.clients.spark import DaybookDataSource

    builder = SparkSession.builder.appName(name)
    made = dict(settings)
    if not is_remote(settings):
        made = {**_DEFAULTS, **_local_defaults(settings), **settings}
    for setting, value in made.items():
        builder = builder.config(setting, value)
    if is_remote(settings):
        spark = builder.getOrCreate()
    else:
        with _own_log(settings), _without_harmless_lines():
            _start_java(name, made)
            spark = builder.getOrCreate()
    try:
        spark.dataSource.register(DaybookDataSource)
        yield spark
    finally:
        spark.stop()


def silence(spark: "SparkSession") -> None:
    """Let a session say nothing more: what is under way fails, because the user ends it."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    with suppress(Exception):  # A session of Spark Connect has no context.
        spark.sparkContext.setLogLevel("OFF")


def _start_java(name: str, settings: Mapping[str, str]) -> None:
    """Start Spark's Java process in a session of its own, unless there is one.

    Terminals, `timeout` and systemd send a signal to all processes of a command.  Java and the
    workers would end in the middle of the batch that the command still wants to finish.  They end
    with this process in any case, because Java reads a pipe of it.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    # A process has one Java process, which outlives a session.
    if SparkContext._gateway is not None or _GIVEN_JAVA in os.environ:  # noqa: SLF001
        return
    conf = SparkConf().setAppName(name).setAll(list(settings.items()))
    gateway = launch_gateway(conf, popen_kwargs={"start_new_session": True})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)  # `getOrCreate` finds it


def _local_defaults(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings of a Spark on this machine, whose workers are this Python."""
    master = settings.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return _LOCAL_DEFAULTS


@contextmanager
def _own_log(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a JVM that starts in the block log as the file of ours says, if no user says otherwise.

    A variable does that, because a setting of ours would replace the Java options of
    `spark-defaults.conf`.
    """
    if has_own_log(settings):
        yield
        return
    os.environ[_LOG_VARIABLE] = _LOG.as_uri()
    try:
        yield
    finally:
        del os.environ[_LOG_VARIABLE]


def has_own_log(settings: Mapping[str, str]) -> bool:
    """Return True if the user sets up the log of Spark."""
    return _LEVEL in settings or _LOG_VARIABLE in os.environ or _has_log_settings()


def _has_log_settings() -> bool:
    """Return True if the directory with the settings of this Spark sets up the log."""
    home = os.environ.get("SPARK_HOME")
    directory = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if directory is None:
        return False
    defaults = Path(directory, "spark-defaults.conf")
    with suppress(OSError):
        if _LEVEL in defaults.read_text():
            return True
    return any(Path(directory).glob("log4j2.*"))


@contextmanager
def _without_harmless_lines() -> Iterator[None]:
    """Let a process that starts in the block write to a pipe of which certain lines are left out.

    All other lines go to standard error, until the process ends.
    """
    try:
        stderr = os.dup(_STDERR)
    except OSError:  # This process has no standard error.
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    threading.Thread(target=_copy_lines, args=(reading, stderr), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, _STDERR)


def _copy_lines(reading: int, writing: int) -> None:
    """Copy the lines of a pipe until its writers have ended; the pipe is emptied in any case."""
    with open(reading, "rb") as lines, open(writing, "wb", buffering=0) as copy:
        for line in lines:
            if line not in _HARMLESS:
                with suppress(OSError):
                    copy.write(line)
