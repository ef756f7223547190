"""`daybook autorecovery`: what looks after copies: how it is, and whether it may work.

    daybook autorecovery status
    daybook autorecovery pause | resume
    daybook autorecovery trigger
    daybook autorecovery run

Bookies run it beside themselves; `run` is a process that does nothing else.

Exit codes of `status`: 0 all is well, 3 there are alarms, 4 it is paused, 5 ledgers lack copies
and nobody works.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from daybook.clients.cli.options import (
    OutputFormat,
    other_instance_option,
    output_option,
    zookeeper_options,
)
from daybook.clients.cli.service import run_service

_ALARMS, _PAUSED, _NOBODY = 3, 4, 5
_WORKER_COLUMNS = ("worker", "doing", "ledger", "pending", "mended", "copied", "rest", "eta")
_ALARM_COLUMNS = ("ledger", "trouble", "entries", "since", "why")


@click.group()
def autorecovery() -> None:
    """Restore copies that were lost: how far it is, pause and resume, look now."""


@autorecovery.command()
@zookeeper_options
@output_option
def status(zookeeper: str, root: str, output: OutputFormat) -> None:
    """Show who works, how far they are, and what cannot be mended.

    Exits with 3 if there are alarms, with 4 if it is paused, with 5 if ledgers lack copies and
    nobody is there to copy.
    """
    from daybook.clients.cli.metadata import run_on_ledgers
    from daybook.clients.cli.output import write_record, write_rows
    from daybook.clients.cli.recovery_status import describe

    found = run_on_ledgers(zookeeper, root, lambda store: describe(store, root))
    if output == "json":
        workers = [asdict(worker) for worker in found.workers]
        alarms = [
            {**asdict(alarm), "trouble": alarm.trouble.value, "entries": alarm.entries}
            for alarm in found.alarms
        ]
        write_record({**found.summary, "workers": workers, "alarms": alarms}, output)
    else:
        write_record(found.summary, output)
        if found.workers:
            click.echo()
            write_rows(found.worker_rows(), _WORKER_COLUMNS, output)
        if found.alarms:
            click.echo()
            write_rows(found.alarm_rows(), _ALARM_COLUMNS, output)
    if found.alarms:
        sys.exit(_ALARMS)
    if found.paused:
        sys.exit(_PAUSED)
    if found.marked and not found.workers:
        sys.exit(_NOBODY)


def _switch(zookeeper: str, root: str, what: Literal["pause", "resume", "trigger"]) -> bool:
    """Whether it is paused then."""
    from daybook.bookie.registry.layout import check_layout
    from daybook.bookie.registry.paths import LedgerPaths
    from daybook.bookie.replication.marks import Marks
    from daybook.clients.cli.metadata import run_on_ledgers
    from daybook.wire.metadata.store import MetadataStore

    async def switch(store: MetadataStore) -> bool:
        await check_layout(store, LedgerPaths(root))  # else it would be made there
        marks = Marks(store, LedgerPaths(root), "")
        await {"pause": marks.pause, "resume": marks.resume, "trigger": marks.trigger}[what]()
        return await marks.is_paused()

    return run_on_ledgers(zookeeper, root, switch, writes=True)


@autorecovery.command()
@other_instance_option
@zookeeper_options
def pause(zookeeper: str, root: str) -> None:
    """Audit and copy nothing until it is resumed."""
    _switch(zookeeper, root, "pause")
    click.echo("Auto-recovery is paused.")


@autorecovery.command()
@other_instance_option
@zookeeper_options
def resume(zookeeper: str, root: str) -> None:
    """Go on after `pause`."""
    _switch(zookeeper, root, "resume")
    click.echo("Auto-recovery goes on.")


@autorecovery.command()
@other_instance_option
@zookeeper_options
def trigger(zookeeper: str, root: str) -> None:
    """Look now: who is gone, and whether all copies are there.  Nobody is waited for."""
    if _switch(zookeeper, root, "trigger"):
        click.echo(
            "Auto-recovery is paused: the auditor looks after `daybook autorecovery resume`."
        )
        return
    click.echo("The auditor was asked to look: `daybook autorecovery status` shows what it found.")


@autorecovery.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A settings file (TOML).",
)
@click.option("--name", help="Of the worker, unique in the cluster.")
@click.option("--rate-bytes-per-s", type=click.FloatRange(min=1), help="How fast it copies.")
@click.option("--lost-delay-s", type=click.FloatRange(min=0), help="How long one is waited for.")
@zookeeper_options
def run(
    config: Path | None,
    name: str | None,
    rate_bytes_per_s: float | None,
    lost_delay_s: float | None,
    zookeeper: str,
    root: str,
) -> None:
    """Run auto-recovery in the foreground, without a bookie."""
    context = click.get_current_context()
    usual = {click.core.ParameterSource.DEFAULT}
    given = config is not None and context.get_parameter_source("zookeeper") in usual
    given_root = config is not None and context.get_parameter_source("root") in usual
    options: dict[str, object] = {
        "config": config,
        "name": name,
        "rate_bytes_per_s": rate_bytes_per_s,
        "lost_delay_s": lost_delay_s,
        # What the file says goes over what is only the usual place.
        "zookeeper": None if given else zookeeper,
        "ledgers_root": None if given_root else root,
    }
    run_service("daybook.bookie.replication", "DAYBOOK_AUTORECOVERY_", options)
