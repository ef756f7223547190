"""`daybook doctor`: look at a whole cluster once, and say what needs attention and what to do.

    daybook doctor
    daybook doctor --all-topics --output json

A cluster that asks who its clients are has to know the caller as a super user.  For another role,
everything that it may not ask is unknown.

It changes nothing.  Exit codes: 0 all is ok, 1 something needs attention or is not known, 2
something has failed or nothing could be asked.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from daybook.clients.cli.chosen import address, chosen, context_note, instead_of_variable
from daybook.clients.cli.context_storage import root_of_context
from daybook.clients.cli.credentials import given_credentials
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import (
    ADMIN_URL,
    LEDGERS_ROOT,
    ZOOKEEPER,
    bookie_access,
    bookie_options,
    check_root,
    check_zookeeper,
    intended_admin_url,
    intended_zookeeper,
    names_cluster,
    security_options,
    shown_default,
    tls_options,
)
from daybook.clients.cli.output import OutputFormat, output_option
from daybook.clients.cli.zookeeper_access import zookeeper_access_options

if TYPE_CHECKING:
    from daybook.clients.cli.doctor_checks import Check
    from daybook.clients.cli.doctor_questions import Security

_ATTENTION, _FAILED, _NOTHING_ASKED = 1, 2, 2
_WIDTH = 120  # where there is no terminal


class _NoAddressError(UserError):
    exit_code = _NOTHING_ASKED


_STYLES = {"failed": "bold red", "attention": "yellow", "unknown": "magenta", "ok": "green"}
_WORST_FIRST = list(_STYLES)


def _check_zookeeper(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    choose = instead_of_variable("zookeeper", required=False)
    return check_zookeeper(context, parameter, choose(context, parameter, value))


@click.command()
@click.option(
    "--admin-url",
    show_default=shown_default(ADMIN_URL),
    show_envvar=True,
    envvar="DAYBOOK_ADMIN_URL",
    metavar="URL",
    callback=instead_of_variable("admin_url", required=False),
    help="The HTTP ports of the brokers: http://HOST:PORT,HOST:PORT,... (with TLS: https://)",
)
@click.option(
    "--zookeeper",
    show_default=f"what the brokers say; {shown_default(ZOOKEEPER)}",
    show_envvar=True,
    envvar="DAYBOOK_ZOOKEEPER",
    metavar="HOST:PORT,...",
    callback=_check_zookeeper,
    help="The addresses of ZooKeeper.",
)
@click.option(
    "--ledgers-root",
    "--root",
    "root",
    show_default=f"what the brokers say, else {LEDGERS_ROOT}",
    metavar="PATH",
    callback=check_root,
    help="The path of the ledgers in ZooKeeper.",
)
@bookie_options
@zookeeper_access_options
@click.option(
    "--stale-days",
    type=click.FloatRange(min=0),
    default=7,
    show_default=True,
    help="A subscription is stale that nobody uses, or that has not moved, for so many days.",
)
@click.option(
    "--all-topics",
    is_flag=True,
    help="Also look at topics that are not loaded.  This loads them, one after the other.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="What was not answered until then is reported as unknown.",
)
@security_options
@output_option
def doctor(
    admin_url: str | None,
    zookeeper: str | None,
    root: str | None,
    stale_days: float,
    all_topics: bool,
    timeout_s: float,
    output: OutputFormat,
) -> None:
    """Look at the whole cluster, and say what needs attention and what to do about it.

    Brokers, ZooKeeper and bookies are asked; nothing is changed.  Only topics that are loaded are
    looked at, unless you add --all-topics.  If you give one of the two addresses, the other one
    comes from the cluster itself.

    Where brokers ask who their clients are, give the token of a super user: what your role may not
    ask is unknown.

    Every check ends as ok, attention, failed or unknown.  The exit code is 0 if all are ok, 1 if
    something needs attention or is unknown, and 2 if something has failed, or if neither a broker
    nor ZooKeeper answered.
    """
    from daybook.clients.cli.doctor_answers import ClusterAnswers
    from daybook.clients.cli.doctor_checks import all_checks, rows
    from daybook.clients.cli.doctor_questions import Questions
    from daybook.clients.cli.progress import open_progress
    from daybook.clients.cli.run import run_async
    from daybook.wire.clock import SystemClock
    from daybook.wire.interpreter import describe

    if admin_url is None and zookeeper is None:
        admin_url, zookeeper = _usual_addresses()
    security = _security(admin_url, zookeeper)
    # Without an address of ZooKeeper, the brokers of the admin URL tell it.
    origin = zookeeper or admin_url or ""
    root = root or root_of_context(origin)
    answers = ClusterAnswers(SystemClock().now_ms(), stale_days, all_topics)
    try:
        questions = Questions(answers, admin_url, zookeeper, root, security, bookie_access(origin))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--admin-url") from error

    async def ask() -> None:
        async with open_progress("Looking") as advance:
            await questions.ask(timeout_s, advance)

    run_async(ask, lambda _: None)
    checks = all_checks(answers)
    if output == "json":
        click.echo(json.dumps([asdict(check) for check in checks]))
    else:
        _write_table(rows(checks, answers))
        click.echo(f"\nThis command runs with {describe()}.")
    if answers.nothing_known:
        click.echo(
            "Neither a broker nor ZooKeeper answers: start a cluster with `daybook standalone`, or"
            " say where yours is with --admin-url or --zookeeper."
            f"{context_note(admin_url or '') or context_note(zookeeper or '')}",
            err=True,
        )
        sys.exit(_NOTHING_ASKED)
    if any(check.verdict == "failed" for check in checks):
        sys.exit(_FAILED)
    if any(check.verdict != "ok" for check in checks):
        sys.exit(_ATTENTION)


def _write_table(rows: "Sequence[Check]") -> None:
    """Print the checks, worst first, with the remedy of each below its sentence."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("what is so, and what helps", overflow="fold")
    for row in sorted(rows, key=lambda each: _WORST_FIRST.index(each.verdict)):
        words = Text(row.sentence)
        if row.remedy:
            words.append(f"\n{row.remedy}", style="dim")
        verdict = Text(row.verdict, style=_STYLES[row.verdict])
        table.add_row(verdict, row.name, words)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    console.print(table)


def _security(admin_url: str | None, zookeeper: str | None) -> "Security":
    """Return what the brokers are shown.  Raise UserError."""
    from daybook.clients.cli.doctor_questions import Security

    origin = admin_url or zookeeper or ""
    # Brokers that ZooKeeper names may have https alone, so that TLS is prepared in any case.
    url = admin_url or "https://"
    return Security(tls_options(url, origin), *given_credentials(origin))


def _usual_addresses() -> tuple[str | None, str | None]:
    """Return where the cluster is; of a context, the addresses that it has."""
    try:
        found = chosen()
        if found is not None and (found.typed or not names_cluster()):
            own = found.context
            return (
                address("admin_url", "--admin-url") if own.admin_url else None,
                address("zookeeper", "--zookeeper") if own.zookeeper else None,
            )
        return intended_admin_url(), intended_zookeeper()
    except UserError as error:
        raise _NoAddressError(error.message) from error
