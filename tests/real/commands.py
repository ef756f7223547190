"""`daybook` commands in this process, where a process of its own is not the point of a test.

A process costs half a second, and one with Spark ten.  Tests of signals, pipes, standard input, and
of what Java writes to standard error need a process.
"""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from click.testing import CliRunner

from daybook.clients.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_here(
    *words: str,
    environ: Mapping[str, str | None] | None = None,
    directory: Path | None = None,
    spark: "SparkSession | None" = None,
) -> "subprocess.CompletedProcess[str]":
    """Run `daybook WORDS`; a variable of `environ` that is None is not set.

    A command that needs Spark uses a session beside `spark`.  An exception that the command line
    does not turn into a sentence is raised.
    """
    with contextlib.ExitStack() as stack:
        if directory is not None:
            stack.enter_context(contextlib.chdir(directory))
        if spark is not None:
            stack.enter_context(_using(spark))
        done = CliRunner().invoke(
            main, words, env=environ, prog_name="daybook", catch_exceptions=False
        )
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@contextlib.contextmanager
def _using(spark: "SparkSession") -> Iterator[None]:
    """Let commands in the block have sessions beside this one, which its context outlives."""
    from daybook.clients.pipelines import session
    from tests.real.spark_session import beside

    @contextlib.contextmanager
    def opened(name: str, settings: Mapping[str, str]) -> "Iterator[SparkSession]":
        del name
        master = settings.get("spark.master", spark.sparkContext.master)
        assert master == spark.sparkContext.master, "the settings of the session are used"
        with beside(spark) as made:
            yield made

    with mock.patch.object(session, "spark_session", opened):
        yield
