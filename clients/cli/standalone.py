"""`daybook standalone`: ZooKeeper, bookies and brokers on this machine, as child processes.

All parts start at the same time; those that need ZooKeeper or bookies wait for them.  When each
part is ready, or has failed to start, the command prints a summary, or one line of JSON
(`--output json`):

    {"ready": true, "service_url": "pulsar://127.0.0.1:6650,127.0.0.1:6651",
     "admin_url": "http://127.0.0.1:8080,127.0.0.1:8081",
     "zookeeper": "127.0.0.1:2181", "dir": "...", "socket": "...",
     "brokers": [{"name": "broker-1", "pid": 1, "address": "..", "service_url": "..", ...}, ...],
     "bookies": [{"name": "bookie-1", "pid": 2, "address": "..", "http_url": ".."}, ...],
     "failed": [], "secure": false, "trusted": null, "token_file": null, "environment": null,
     "locked": [], "certificate": null}

`trusted`, `token_file` and `environment` are files of a secure cluster (`--secure`): the authority
that clients trust, the token of its admin, and the variables for commands.  `locked` names the
parts that ask who comes, and `certificate` is the file with the certificate and the key by which
the admin enters bookies and ZooKeeper.  No secret is printed.

The cluster runs without bookies that do not start (`failed` has the reasons), since the commands
that repair them need its ZooKeeper and the other bookies.  A part that dies is restarted after a
second.

Ctrl-C (or SIGTERM) stops the brokers, then the bookies, then ZooKeeper, so that each part still has
what it needs for a clean end.  A second Ctrl-C kills all parts.
"""

import json
import os
import shlex
import shutil
import signal
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any

import click
import trio

from daybook.clients.cli.control_server import serve_control
from daybook.clients.cli.directory import LOOPBACK, Directory, open_directory
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.exposure import decide_exposure
from daybook.clients.cli.options import DEFAULT_DIRECTORY, dir_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record
from daybook.clients.cli.plan import (
    ADMIN_PORT,
    SERVICE_PORT,
    ZOOKEEPER_PORT,
    ClusterOptions,
    Plan,
    make_plan,
    moved_brokers,
)
from daybook.clients.cli.ports import PortChooser
from daybook.clients.cli.progress import Waiting, report_waiting
from daybook.clients.cli.secure import FOLDER, Security
from daybook.clients.cli.supervisor import (
    RESTART_DELAY_S_MAX,
    PartFailedError,
    PartState,
    Supervisor,
)
from daybook.wire import interpreter
from daybook.wire.clock import SystemClock
from daybook.wire.errors import ConnectionLostError
from daybook.wire.tcp import TcpNetwork

_START_TIMEOUT_S = 180.0
_SLOW_START_S = 10.0
_ZOOKEEPER_TIMEOUT_S = 5.0
_STOP_ORDER = ("broker", "bookie", "zookeeper")
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_port = click.IntRange(0, 65000)


@click.command()
@click.option(
    "--bookies",
    type=click.IntRange(1, 64),
    help="The number of bookies.  [default: 3, or as at the last start]",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="The number of brokers.",
)
@dir_option
@click.option(
    "--ephemeral",
    is_flag=True,
    help="Use free ports and a temporary directory that is removed at the end.",
)
@click.option(
    "--secure/--insecure",
    "secure",
    default=None,
    help="--secure: only TLS, a token for each client of the brokers, and a certificate for each of"
    " bookies and ZooKeeper; keys, certificates and the token of an admin are in the data"
    " directory.  --insecure: everybody who reaches the cluster may do everything.  Later starts"
    " are as this one.  [default: only this machine reaches the brokers]",
)
@click.option(
    "--lock-storage",
    is_flag=True,
    help="Lock bookies and ZooKeeper, too, in a directory that was made secure when that was not"
    " possible.",
)
@click.option(
    "--host",
    help="The address on which brokers listen; 0.0.0.0: all.  Bookies and ZooKeeper always listen"
    f" on {LOOPBACK}.  [default: {LOOPBACK}]",
)
@click.option(
    "--advertised-host",
    help="The name or address by which others reach the brokers.  [default: --host; for 0.0.0.0"
    " the name of this machine, or its address in the network]",
)
@click.option(
    "--san",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --secure: a further name or address in the certificate of the brokers.  May be given"
    " more than once.",
)
@click.option(
    "--port",
    type=_port,
    help="Port of the first broker; the others have the next ones if these are free.  0: free ports"
    " for all brokers, and for all parts without an option of their own."
    f"  [default: {SERVICE_PORT}]",
)
@click.option(
    "--admin-port",
    type=_port,
    help=f"HTTP port of the first broker; 0: any.  [default: {ADMIN_PORT}]",
)
@click.option(
    "--zookeeper-port", type=_port, help=f"Port of ZooKeeper; 0: any.  [default: {ZOOKEEPER_PORT}]"
)
@click.option("--zookeeper", metavar="HOST:PORT,...", help="Use this ZooKeeper and start none.")
@click.option(
    "--zookeeper-home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The directory of a ZooKeeper distribution, whose server is run.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KIND.NAME=VALUE",
    help="A setting of all brokers or bookies until the next start, as broker.roll_entries=100000."
    "  May be given more than once; the variable DAYBOOK_BROKER_ROLL_ENTRIES does the same.  The"
    " page docs/operations.md lists all settings; a part that does not know one says so, and the"
    " cluster does not start.",
)
@output_option
@click.pass_context
def standalone(
    context: click.Context,
    bookies: int | None,
    brokers: int,
    directory: Path,
    ephemeral: bool,
    secure: bool | None,
    lock_storage: bool,
    host: str | None,
    advertised_host: str | None,
    names: tuple[str, ...],
    port: int | None,
    admin_port: int | None,
    zookeeper_port: int | None,
    zookeeper: str | None,
    zookeeper_home: Path | None,
    settings: tuple[str, ...],
    output: OutputFormat,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C."""
    named = context.get_parameter_source("directory") is click.core.ParameterSource.COMMANDLINE
    if ephemeral and named:
        raise UserError("--ephemeral makes a directory of its own: leave out --dir.")
    if zookeeper and (zookeeper_home or zookeeper_port is not None):
        raise UserError("With --zookeeper no ZooKeeper is started: leave out its other options.")
    options = ClusterOptions(
        bookies=bookies,
        brokers=brokers,
        port=port,
        admin_port=admin_port,
        zookeeper_port=zookeeper_port,
        zookeeper=zookeeper,
        zookeeper_home=zookeeper_home,
        ephemeral=ephemeral,
        settings=settings,
    )
    with (
        _place(directory, ephemeral) as place,
        open_directory(place) as opened,
        PortChooser(SystemRandom()) as ports,
    ):
        exposure = decide_exposure(
            host,
            advertised_host,
            secure=secure,
            lock_storage=lock_storage,
            names=names,
            before=opened.load(),
            has_keys=opened.part(FOLDER).exists(),
        )
        plan = make_plan(replace(options, exposure=exposure), opened, os.environ, ports)
        for name in plan.ignored:
            hint = "; say with --host where brokers listen" if name.endswith("_HOST") else ""
            _report(f"{name} is ignored: a standalone cluster decides about that itself{hint}")
        for warning in (*exposure.warnings, *moved_brokers(options, plan.saved)):
            _report(warning)
        ports.release()  # the parts bind them; the claims last as long as the cluster
        if plan.saved.zookeeper:
            trio.run(_check_zookeeper, plan.saved.zookeeper)
        if plan.security is not None:
            _prepare(plan.security, plan, opened)
        if plan.server is not None:
            plan.server.prepare()
        # Before the start: bookies are known by their ports, so a failed start must keep them, too.
        opened.save(plan.saved)
        failure = trio.run(_run, plan, opened, output)
        if failure:
            raise UserError(failure)


def _prepare(security: Security, plan: Plan, directory: Directory) -> None:
    """Make the keys and files of a secure cluster.  Raise `UserError` if that is not possible."""
    security.prepare(SystemClock(), _report)
    security.write_environment(
        {
            "SERVICE_URL": plan.service_url,
            "ADMIN_URL": plan.admin_url,
            "ZOOKEEPER": plan.zookeeper,
        },
        own_zookeeper=not plan.saved.zookeeper,
    )
    if directory.path.stat().st_mode & _OTHERS_ENTER:
        _report(
            f"other users of this machine may enter {directory.path}, which has the messages:"
            f" `chmod 700 {directory.path}` if they should not"
        )
    external = plan.saved.zookeeper
    if not security.storage:
        open_parts = "bookies listen" if external else "bookies and ZooKeeper listen"
        _report(
            f"{open_parts} on {LOOPBACK} alone, and ask nobody who they are: processes of this"
            " machine can reach them; a start with --lock-storage locks them"
        )
    if external:
        _report(f"what the ZooKeeper at {external} asks of its clients is not known here")


@contextmanager
def _place(directory: Path, ephemeral: bool) -> Generator[Path]:
    if not ephemeral:
        yield directory
        return
    temporary = tempfile.mkdtemp(prefix=f"{DEFAULT_DIRECTORY}-")
    try:
        yield Path(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


async def _check_zookeeper(hosts: str) -> None:
    """Raise `UserError` at once if nobody listens at any of the addresses."""
    for host in hosts.partition("/")[0].split(","):
        name, _, number = host.rpartition(":")
        if not name or not number.isdigit():
            raise UserError(f"--zookeeper: {host} is not HOST:PORT.")
        with trio.move_on_after(_ZOOKEEPER_TIMEOUT_S):
            try:
                (await TcpNetwork().connect(name, int(number))).close()
            except (ConnectionLostError, OSError):
                continue
            return
    raise UserError(
        f"No server listens at {hosts}: start ZooKeeper there, or leave out --zookeeper to start"
        " one here."
    )


async def _run(plan: Plan, directory: Directory, output: OutputFormat) -> str | None:
    """Run the cluster until a signal; return the reason if it could not start."""
    supervisor = Supervisor(plan.parts, _report, ack_quorum=plan.ack_quorum)
    stop = trio.Event()
    started = trio.current_time()
    with directory.control_socket() as socket_path:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_signals, stop, supervisor)
            if plan.security is not None:
                nursery.start_soon(plan.security.keep_renewed, SystemClock(), _report)
            nursery.start_soon(supervisor.run)
            # Before the parts are ready: `daybook local` has to work while one of them hangs.
            await nursery.start(serve_control, supervisor, socket_path)
            failure, lacking = await _wait_ready(supervisor, stop)
            if failure is None and not stop.is_set():
                seconds = trio.current_time() - started
                record = _ready_record(plan, supervisor, directory, socket_path, lacking)
                _announce(record, seconds, output)
                _warn(lacking, supervisor, plan.ack_quorum)
                await stop.wait()
                _report("stopping")
            await supervisor.stop(_STOP_ORDER)
            nursery.cancel_scope.cancel()
    return failure


async def _wait_ready(supervisor: Supervisor, stop: trio.Event) -> tuple[str | None, Sequence[str]]:
    """Wait until the parts are ready, or until `stop`.

    Return the reason why the cluster cannot run, or None, and the failures of parts that it runs
    without.
    """
    failures: list[str] = []
    lacking: list[str] = []
    until = trio.current_time() + _START_TIMEOUT_S

    def late() -> str:
        parts = [k.part for k in supervisor.keepers.values() if k.state is not PartState.RUNNING]
        return ", ".join(f"{part.name} (see {part.log})" for part in parts)

    async def wait() -> None:
        try:
            with trio.fail_at(until):
                async with report_waiting(lambda: Waiting(late(), until), silent_s=_SLOW_START_S):
                    lacking.extend(await supervisor.wait_ready())
        except PartFailedError as error:
            failures.append(f"{error}.")
        except trio.TooSlowError:
            failures.append(f"Not ready after {_START_TIMEOUT_S:g} s: {late()}.")
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await stop.wait()
        nursery.cancel_scope.cancel()
    return failures[0] if failures else None, lacking


def _warn(lacking: Sequence[str], supervisor: Supervisor, ack_quorum: int) -> None:
    """Report the parts that do not run, the consequences, and what helps."""
    for failure in lacking:
        _report(f"{failure.rstrip('.')}.  It is tried again every {RESTART_DELAY_S_MAX:g} s")
    bookies = [k for k in supervisor.keepers.values() if k.part.kind == "bookie"]
    running = [k for k in bookies if k.state is PartState.RUNNING]
    if len(running) < len(bookies):
        _report(
            f"{len(running)} of {len(bookies)} bookies run.  `daybook bookies repair NAME` lets one"
            " whose directory was lost, emptied or damaged start again, and copies its entries back"
        )
    if len(running) < ack_quorum:
        _report(
            f"NOTHING CAN BE PUBLISHED: a message is stored on at least {ack_quorum} bookies"
            " before it is acknowledged.  `daybook local status` shows the states of the parts"
        )


async def _watch_signals(stop: trio.Event, supervisor: Supervisor) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for _ in signals:
            if stop.is_set():
                _report("killing all parts")
                supervisor.kill_now()
            stop.set()


def _ready_record(
    plan: Plan,
    supervisor: Supervisor,
    directory: Directory,
    socket_path: Path,
    lacking: Sequence[str],
) -> dict[str, Any]:
    def parts(kind: str) -> list[dict[str, Any]]:
        return [
            {"name": k.part.name, "pid": k.pid, **k.part.facts, "why": k.failure}
            for k in supervisor.keepers.values()
            if k.part.kind == kind
        ]

    security = plan.security
    return {
        "ready": True,
        "service_url": plan.service_url,
        "admin_url": plan.admin_url,
        "zookeeper": plan.zookeeper,
        "dir": str(directory.path),
        "socket": str(socket_path),
        "pid": os.getpid(),
        "brokers": parts("broker"),
        "bookies": parts("bookie"),
        "failed": list(lacking),
        "secure": security is not None,
        "trusted": security and str(security.trusted),
        "token_file": security and str(security.admin_token),
        "environment": security and str(security.environment),
        "locked": list(plan.saved.locked),
        "certificate": str(security.admin_certificate) if security and security.storage else None,
    }


def _announce(record: dict[str, Any], seconds: float, output: OutputFormat) -> None:
    if output == "json":
        click.echo(json.dumps(record))
        return
    click.echo(f"Daybook is ready ({seconds:.1f} s).  Ctrl-C stops it.\n")
    rows = {
        "service": record["service_url"],
        "admin": record["admin_url"],
        "zookeeper": record["zookeeper"],
        "data": record["dir"],
        "parts": f"daybook local status --dir {record['dir']}",
        "elsewhere": f"export DAYBOOK_DIR={Path(record['dir']).absolute()}",
        "runs with": interpreter.describe(),
    }
    if record["secure"]:
        del rows["elsewhere"]
        rows["connect"] = f". {shlex.quote(record['environment'])}"
        rows["trusted"] = record["trusted"]
        rows["admin token"] = record["token_file"]
    write_record(rows, output)


def _report(what: str) -> None:
    click.echo(f"daybook: {what}", err=True)
