"""`daybook autorecovery`: show and control auto-recovery, which restores lost copies.

    daybook autorecovery status
    daybook autorecovery pause | resume
    daybook autorecovery trigger
    daybook autorecovery run

Each bookie process also runs auto-recovery; `run` starts a process that does nothing else.

Exit codes of `status`: 0 all is well, 3 there are alarms, 4 it is paused, 5 ledgers lack copies
and no worker runs.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from daybook.clients.cli.options import other_instance_option, zookeeper_options
from daybook.clients.cli.output import OutputFormat, output_option
from daybook.clients.cli.service import run_service
from daybook.clients.cli.zookeeper_access import zookeeper_access
from daybook.wire.tls_files import TlsFiles

_ALARMS, _PAUSED, _NOBODY = 3, 4, 5
_WORKER_COLUMNS = ("worker", "doing", "ledger", "pending", "mended", "copied", "rest", "eta")
_ALARM_COLUMNS = ("ledger", "trouble", "entries", "since", "why")


@click.group()
def autorecovery() -> None:
    """Show and control auto-recovery, which restores lost copies of entries."""


@autorecovery.command()
@zookeeper_options
@output_option
def status(zookeeper: str, root: str, output: OutputFormat) -> None:
    """Show the workers, their progress, and the ledgers that cannot be repaired.

    The exit code is 3 if there are alarms, 4 if auto-recovery is paused, 5 if ledgers lack copies
    and no worker runs.
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
    """Pause, resume or trigger auto-recovery; return True if it is paused afterwards."""
    from daybook.bookie.registry.layout import check_layout
    from daybook.bookie.registry.paths import LedgerPaths
    from daybook.bookie.registry.underreplication import Underreplication
    from daybook.clients.cli.metadata import run_on_ledgers
    from daybook.wire.metadata.store import MetadataStore

    async def switch(store: MetadataStore) -> bool:
        # Otherwise the calls below would create a layout there.
        await check_layout(store, LedgerPaths(root))
        underreplication = Underreplication(store, LedgerPaths(root), "")
        match what:
            case "pause":
                await underreplication.pause()
            case "resume":
                await underreplication.resume()
            case "trigger":
                await underreplication.request_audit()
        return await underreplication.is_paused()

    return run_on_ledgers(zookeeper, root, switch, writes=True)


@autorecovery.command()
@other_instance_option
@zookeeper_options
def pause(zookeeper: str, root: str) -> None:
    """Stop auditing and copying until `resume`."""
    _switch(zookeeper, root, "pause")
    click.echo("Auto-recovery is paused.")


@autorecovery.command()
@other_instance_option
@zookeeper_options
def resume(zookeeper: str, root: str) -> None:
    """Continue after `pause`."""
    _switch(zookeeper, root, "resume")
    click.echo("Auto-recovery goes on.")


@autorecovery.command()
@other_instance_option
@zookeeper_options
def trigger(zookeeper: str, root: str) -> None:
    """Look for lost bookies and missing copies now, without the usual delay."""
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
    help="A TOML file with the settings.",
)
@click.option("--name", help="The name of the worker, unique in the cluster.")
@click.option(
    "--rate-bytes-per-s", type=click.FloatRange(min=1), help="The limit on the rate of copying."
)
@click.option(
    "--lost-delay-s",
    type=click.FloatRange(min=0),
    help="How long a bookie may be away before its copies are restored elsewhere.",
)
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
        # A settings file wins over a default address.
        "zookeeper": None if given else zookeeper,
        "ledgers_root": None if given_root else root,
        **_access_settings("" if given else zookeeper),
    }
    run_service("daybook.bookie.replication", "DAYBOOK_AUTORECOVERY_", options)


def _access_settings(zookeeper: str) -> dict[str, object]:
    """Return the settings for what the options say about ZooKeeper; None: as the file says.

    The directory of a secure cluster also says how to reach its bookies, if it gave the address.
    """
    from daybook.clients.cli.directory_keys import keys_for_bookies

    access = zookeeper_access(zookeeper)
    files = access.tls or TlsFiles()
    if keys := keys_for_bookies(zookeeper):
        files = TlsFiles(
            files.certificate or keys["certificate"],
            files.key or keys["key"],
            files.trusted or keys["trusted"],
        )
    return {
        "bookie_tls": True if keys else None,
        "zookeeper_tls": None if access.tls is None else True,
        "zookeeper_user": access.user or None,
        "zookeeper_password_file": access.password_file,
        "tls_certificate": files.certificate,
        "tls_key": files.key,
        "tls_trusted": files.trusted,
    }
