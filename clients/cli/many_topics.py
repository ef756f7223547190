"""Commands for several topics: their names, a request for each, and one summary.

Names are arguments, or lines of a file or of standard input.  `AT_ONCE` requests are under way at a
time.  A topic that fails does not end the command; when no broker answers, or the credentials are
refused, the topics that are left are not tried.
"""

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, TextIO, TypeVar, cast

import click
import trio

from daybook.clients.cli.broker_client import PATIENCE_S, error_sentence, parse_topic
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import client_arguments
from daybook.clients.cli.output import OutputFormat, counted, write_record
from daybook.clients.cli.progress import Advance, open_progress
from daybook.clients.cli.run import run_async
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import (
    AuthenticationError,
    BrokerError,
    CredentialsError,
    TlsError,
    UnavailableError,
)
from daybook.wire.topics import TopicName

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., None])

AT_ONCE = 16
_NAMES_MAX = 100_000
_SHOWN = 20  # failures that are written to standard error
_STDIN = "-"
_FOR_ALL = (UnavailableError, TlsError, CredentialsError, AuthenticationError)


# -- names


@dataclass(frozen=True, slots=True)
class Chosen:
    """The topics of a command, without repeats, in the order in which they were named."""

    topics: Sequence[TopicName]
    several: bool  # The command was called for several, though there may be one.

    @property
    def names(self) -> list[str]:
        return [topic.full for topic in self.topics]

    def shown(self) -> str:
        """Return the number of topics, and the names of the first ones."""
        first = ", ".join(self.names[:3])
        return f"{counted(len(self.topics), 'topic')} ({first}{', ...' * (len(self.topics) > 3)})"


def names_argument(function: Function) -> Function:
    """Add `NAME...` and `--from FILE`, as the parameter `chosen`."""

    @wraps(function)
    def run(*, names: tuple[str, ...], listed: TextIO | None, **options: Any) -> None:  # noqa: ANN401
        function(chosen=_choose(names, listed), **options)

    run = click.option(
        "--from",
        "listed",
        type=click.File("r", encoding="utf-8"),
        metavar="FILE",
        help="A file with names, one a line; - is standard input.",
    )(run)
    run = click.argument("names", nargs=-1, metavar="[NAME]...")(run)
    return cast("Function", run)


def _choose(names: Sequence[str], listed: TextIO | None) -> Chosen:
    several = listed is not None or _STDIN in names or len(names) != 1
    found: dict[TopicName, None] = {}
    for name in _all_names(names, listed):
        found[parse_topic(name)] = None
        if len(found) > _NAMES_MAX:
            raise UserError(f"A command takes {_NAMES_MAX:,} topics at most: use several ones.")
    if not found:
        raise UserError("No topic is named: give names, or --from FILE, or - for standard input.")
    return Chosen(list(found), several)


def _all_names(names: Sequence[str], listed: TextIO | None) -> Iterator[str]:
    for name in names:
        if name == _STDIN:
            yield from _lines(sys.stdin)
        else:
            yield name
    if listed is not None:
        yield from _lines(listed)


def _lines(file: TextIO) -> Iterator[str]:
    try:
        yield from filter(None, map(str.strip, file))
    except UnicodeDecodeError as error:
        raise UserError(f"The names are not text in UTF-8: {error}.") from None


# -- requests


@dataclass(slots=True)
class Outcomes(Generic[T]):
    """The answers and failures by topic, and the topics that were not tried."""

    done: dict[str, T] = field(default_factory=dict[str, T])
    failed: dict[str, str] = field(default_factory=dict[str, str])  # a sentence each
    untried: list[str] = field(default_factory=list[str])


def ask_many(
    admin_url: str,
    what: str,
    names: Sequence[str],
    ask: Callable[[Admin, str], Awaitable[T]],
    *,
    changes: bool = False,
) -> Outcomes[T]:
    """Ask for each topic, several at a time; `what` names the work for a report on its progress."""
    arguments = client_arguments(admin_url)

    async def run() -> Outcomes[T]:
        admin = Admin(admin_url, timeout_s=PATIENCE_S, **arguments)
        async with open_progress(what) as advance:
            return await _ask_each(names, lambda name: ask(admin, name), say, advance)

    def say(error: Exception) -> str | None:
        return error_sentence(error, admin_url, "--admin-url", changes=changes)

    return run_async(run, say)


async def _ask_each(
    names: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    say: Callable[[Exception], str | None],
    advance: Advance,
) -> Outcomes[T]:
    waiting, stopped = deque(names), False
    answers: dict[str, T] = {}
    failed: dict[str, str] = {}

    async def work() -> None:
        nonlocal stopped
        while waiting and not stopped:
            name = waiting.popleft()
            try:
                answers[name] = await ask(name)
            except (BrokerError, UserError) as error:
                failed[name] = say(error) or str(error)
                # Requests under way are not cut: nobody could tell what became of them.
                stopped = stopped or isinstance(error, _FOR_ALL)
            done = len(answers) + len(failed)
            advance(done, len(names), f"{len(failed):,} failed" if failed else "")

    async with trio.open_nursery() as nursery:
        for _ in range(min(AT_ONCE, len(names))):
            nursery.start_soon(work)
    return Outcomes(
        {name: answers[name] for name in names if name in answers},
        {name: failed[name] for name in names if name in failed},
        list(waiting),
    )


# -- results


def show_failures(outcomes: Outcomes[T]) -> None:
    """Write failures to standard error, and exit with 1 if there are any."""
    for name, sentence in list(outcomes.failed.items())[:_SHOWN]:
        click.echo(f"{name}: {sentence}", err=True)
    more = len(outcomes.failed) - _SHOWN
    if more > 0:
        click.echo(f"{counted(more, 'more topic')} failed.", err=True)
    if outcomes.untried:
        click.echo(f"Not tried: {counted(len(outcomes.untried), 'topic')}.", err=True)
    if outcomes.failed or outcomes.untried:
        raise click.exceptions.Exit(1)


def show_summary(outcomes: Outcomes[T], done: str, output: OutputFormat) -> None:
    """Print how many topics were `done`, or all names as JSON; exit with 1 if any was not."""
    if output == "json":
        record: dict[str, object] = {
            done: list(outcomes.done),
            "failed": outcomes.failed,
            "not tried": outcomes.untried,
        }
    else:
        record = {done: len(outcomes.done), "failed": len(outcomes.failed)}
        if outcomes.untried:
            record["not tried"] = len(outcomes.untried)
    write_record(record, output)
    show_failures(outcomes)
