"""PySpark's own log of a wrong expression, which is its whole Java stack as a line of JSON.

The error of a command has the sentence of it already, so the line is left out, unless users set up
the log of Spark themselves.
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
from collections.abc import Generator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

_NAMES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def without_java_stacks() -> Generator[None]:
    """Let PySpark log no stack in the block."""
    # A logger that is not made by PySpark would not take its arguments.
    before = [(each, each.level) for each in map(PySparkLogger.getLogger, _NAMES)]
    for logger, _ in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
