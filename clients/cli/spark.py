"""The parts that commands on Spark share: the option `--spark`, the session, and its signals."""

import signal
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from daybook.clients.cli.broker_client import LIMITS, error_sentence
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import Function, client_arguments
from daybook.clients.cli.run import run_async, until_signal
from daybook.clients.python.connect import FIRST_CONTACT_S, connect
from daybook.clients.python.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from daybook.clients.python.tls import TlsOptions
    from daybook.clients.spark.credential_options import QueryCredentials

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CONTACT_S = FIRST_CONTACT_S
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
    with spark_installed(), ExitStack() as stack:
        from daybook.clients.pipelines.quiet import without_java_stacks
        from daybook.clients.pipelines.session import (
            has_own_log,
            is_remote,
            silence,
            spark_session,
        )

        if not has_own_log(settings):
            stack.enter_context(without_java_stacks())
        if not is_remote(settings):
            click.echo("Starting Spark.", err=True)
        with _held_signals():
            spark = stack.enter_context(spark_session(f"daybook {name}", settings))
        try:
            yield spark
        except (EndedBySignalError, KeyboardInterrupt):
            silence(spark)
            raise


def check_cluster(
    service_url: str, option: str, tls: "TlsOptions | None", who: "QueryCredentials"
) -> None:
    """Raise UserError if no broker answers in the time of a first contact, or lets nobody in.

    Spark takes half a minute to start, so a command asks before.  `option` sets the address.
    """

    async def ask() -> None:
        try:
            async with connect(
                service_url,
                timeout_s=_CONTACT_S,
                limits=LIMITS,
                tls=tls,
                token=who.token,
                basic=who.basic,
            ):
                pass
        except UnavailableError as error:
            raise UnavailableError(without_advice(error)) from None

    with ended_by_signals():
        received = run_async(
            lambda: until_signal(ask), lambda error: error_sentence(error, service_url, option)
        )
        if received is not None:
            raise EndedBySignalError(received)


def without_advice(error: Exception) -> str:
    """Return an error of `connect` without the advice for programs, which follows two spaces."""
    return str(error).partition(".  ")[0]


class EndedBySignalError(BaseException):
    """Ctrl-C or SIGTERM ends the command; `ended_by_signals` says so."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Let Ctrl-C and SIGTERM end a command with a sentence, also before its work begins.

    The sentence is the last line, after the end of Spark.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise EndedBySignalError(number)

    before = {each: signal.signal(each, end) for each in _SIGNALS}
    received: int
    try:
        yield
        return
    except KeyboardInterrupt:  # from the handler of PySpark
        received = signal.SIGINT
    except EndedBySignalError as error:
        received = error.number
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    click.echo("Stopped. Run the command again to go on.", err=True)
    raise SystemExit(128 + received)


@contextmanager
def _held_signals() -> Generator[None]:
    """Let signals take effect at the end of the block: half a start would leave a Java process."""
    received: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        del frame
        if not received:
            click.echo("Stopping as soon as Spark has started.", err=True)
        received.append(number)

    before = {each: signal.signal(each, hold) for each in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def query_security(url: str) -> "tuple[TlsOptions | None, QueryCredentials]":
    """Return the TLS and the credentials of the running command, as a query takes them."""
    from daybook.clients.spark.credential_options import QueryCredentials

    found = client_arguments(url)
    return found["tls"], QueryCredentials(found["token"], found["basic"])
