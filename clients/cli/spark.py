"""The parts that commands on Spark share: the option `--spark`, and the session."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import Function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTRA = ("pyspark", "pyarrow", "numpy")


def _settings(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    del context, parameter
    found: dict[str, str] = {}
    for each in value:
        name, equals, setting = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.BadParameter(f"{each!r}: write spark.NAME=VALUE.")
        found[name] = setting
    return found


def spark_option(function: Function) -> Function:
    """Add `--spark`, as `settings`."""
    return click.option(
        "--spark",
        "settings",
        multiple=True,
        metavar="spark.NAME=VALUE",
        callback=_settings,
        help="A setting of Spark, such as spark.master=spark://HOST:7077; may be repeated.",
    )(function)


@contextmanager
def spark_installed() -> "Generator[None]":
    """Raise UserError if the block lacks a module of the extra `spark`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise UserError(
            f"Pipelines need {error.name}, which is not installed: install it with"
            " pip install 'daybook-mq[spark]'."
        ) from None


@contextmanager
def open_spark(name: str, settings: Mapping[str, str]) -> "Generator[SparkSession]":
    """Open the session of a command.  Raise UserError without PySpark."""
    with spark_installed():
        from daybook.clients.pipelines.session import spark_session

        with spark_session(f"daybook {name}", settings) as spark:
            yield spark
