"""`python -m daybook.bookie.server --config FILE`: a bookie as a process.

The process prints one line of JSON on standard output when it serves, and logs to standard error:

    {"ready": true, "name": "127.0.0.1:3181", "host": "127.0.0.1", "port": 3181, "http_port": ...}

The process stops in order on SIGTERM and SIGINT: it closes the port, removes the registration, and
writes a mark of the orderly stop to the end of its log.  With `exit_with_parent` it does so too
when standard input ends.

With `--repair-cookie` it does not serve: it writes the missing cookies again, for a bookie that has
lost the contents of directories (`host.repair_cookie`).

Exit codes: 0 stopped, 1 the settings are invalid, 2 the bookie cannot start like this, 3 it failed.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random, SystemRandom
from typing import cast

import msgspec
import trio

from daybook.bookie.replication.host import run_autorecovery
from daybook.bookie.server.config import BookieConfig, load
from daybook.bookie.server.cookie_validation import StartError
from daybook.bookie.server.host import START_ERRORS, RunningBookie, repair_cookie, run_bookie
from daybook.bookie.server.http import create_app, serve_http_ports
from daybook.bookie.server.security import SecurityOfBookie, open_security
from daybook.bookie.storage.disk import Disk, FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.wire import process
from daybook.wire.clock import SystemClock
from daybook.wire.descriptors import ShortageLog, bounds_of_ports
from daybook.wire.logging import Log, forward_to, log_to_stderr
from daybook.wire.metadata.announce import Process
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.own_address import is_loopback
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork

_STOPPED, _BAD_CONFIG, _CANNOT_START, _FAILED = range(4)
_PRIVATE = 0o077  # Nobody else reads entries, or the master keys of ledgers in the index.
_STDIN_BYTES = 1 << 16
_DESCRIPTORS_KEPT = 256  # for the metadata store, other bookies, probes
_DESCRIPTORS_OF_A_DIRECTORY = 400  # 64 segments that are read, each twice, and 256 of the index
_SILENT_S = 2.0  # a shorter wait for ZooKeeper is not logged


def main(open_disk: Callable[[], Disk] = FileDisk) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m daybook.bookie.server", description="A bookie."
    )
    parser.add_argument("--config", type=Path, help="a TOML file; the environment goes over it")
    parser.add_argument(
        "--repair-cookie", action="store_true", help="only give its directories their cookies again"
    )
    arguments = parser.parse_args()
    try:
        config = _absolute(load(arguments.config, os.environ))
    except ConfigError as error:
        print(f"bookie: {error}", file=sys.stderr)  # noqa: T201  there is no log yet
        return _BAD_CONFIG
    os.umask(_PRIVATE)
    process.prepare()
    log = log_to_stderr()
    forward_to(log)
    _warn_of_exposure(config, log)
    try:
        config = _within_descriptors(config, log)
    except ConfigError as error:
        return _report(log, [StartError(str(error))])
    try:
        trio.run(_repair_cookie if arguments.repair_cookie else _run, config, open_disk, log)
    except (Exception, BaseExceptionGroup) as error:
        return _report(log, _leaves(error))
    return _STOPPED


def _warn_of_exposure(config: BookieConfig, log: Log) -> None:
    """Log one warning if other machines reach this bookie, which asks nobody who they are."""
    try:
        if is_loopback(config.host):
            return
    except OSError:
        return  # The port cannot be opened there, which is an error of its own.
    log.warning(
        "everybody who reaches this bookie may read, write and delete entries: keep others than"
        " brokers, bookies and readers of ledgers from its ports (docs/security.md)",
        host=config.host,
        advertised_host=config.public_host,
    )


def _within_descriptors(config: BookieConfig, log: Log) -> BookieConfig:
    """Return settings whose connections fit under the limit of open files."""
    shares = bounds_of_ports(
        reserve=_DESCRIPTORS_KEPT + len(config.directories) * _DESCRIPTORS_OF_A_DIRECTORY,
        service_max=config.connections_max,
        http_max=config.http_connections_max,
        warn=log.warning,
    )
    return msgspec.structs.replace(
        config, connections_max=shares.service, http_connections_max=shares.http
    )


@asynccontextmanager
async def _open_metadata(config: BookieConfig, log: Log) -> AsyncGenerator[MetadataStore]:
    """Open a metadata session; log a warning if that takes longer than `_SILENT_S`."""
    waiting = trio.CancelScope()

    async def tell() -> None:
        with waiting:
            await trio.sleep(_SILENT_S)
            log.warning(
                "waiting for ZooKeeper", at=config.zookeeper, at_most_s=config.connect_timeout_s
            )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        async with open_zookeeper(
            config.zookeeper,
            session_timeout_s=config.session_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            access=config.zookeeper_access,
            process=Process("bookie", config.bookie_id or f"{config.public_host}:{config.port}"),
            log=log,
        ) as metadata:
            waiting.cancel()
            yield metadata


async def _run(config: BookieConfig, open_disk: Callable[[], Disk], log: Log) -> None:
    rng = SystemRandom()
    shortage = ShortageLog(log.warning)
    security = open_security(config, clock=SystemClock(), log=log, rng=rng)
    async with (
        _open_metadata(config, log) as metadata,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_stop_on_signal, config, nursery.cancel_scope, log)

        async def bookie(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            await run_bookie(
                config,
                network=TcpNetwork(shortage.failed),
                metadata=metadata,
                disk=open_disk(),
                index=open_rocks_index,
                clock=SystemClock(),
                rng=rng,
                log=log,
                security=security,
                task_status=task_status,
            )

        running: RunningBookie = await nursery.start(bookie)
        app = create_app(running, nursery, security.door(config))
        http_port, https_port = await nursery.start(
            serve_http_ports, app, config, security.server, log, shortage.failed
        )
        if config.autorecovery:
            nursery.start_soon(_recover, config, metadata, rng, running.bookie_id, security)
        process.settle()
        _print_ready(running, http_port, https_port)


async def _repair_cookie(config: BookieConfig, open_disk: Callable[[], Disk], log: Log) -> None:
    async with _open_metadata(config, log) as metadata:
        bookie_id = await repair_cookie(
            config,
            metadata=metadata,
            disk=open_disk(),
            index=open_rocks_index,
            clock=SystemClock(),
            rng=SystemRandom(),
            log=log,
        )
    print(json.dumps({"repaired": bookie_id}), flush=True)  # noqa: T201  for the parent process


async def _recover(
    config: BookieConfig,
    metadata: MetadataStore,
    rng: Random,
    bookie_id: str,
    security: SecurityOfBookie,
) -> None:
    await run_autorecovery(
        store=metadata,
        network=TcpNetwork(),
        rng=rng,
        clock=SystemClock(),
        root=config.ledgers_root,
        name=bookie_id,
        limits=config.replication_limits,
        security=security.client,
    )


def _print_ready(running: RunningBookie, http_port: int | None, https_port: int | None) -> None:
    facts = {
        "ready": True,
        "name": running.bookie_id,
        "host": running.host,
        "port": running.port,
        "http_port": http_port,
        "https_port": https_port,
        "pid": os.getpid(),
    }
    print(json.dumps(facts), flush=True)  # noqa: T201  for the parent process


async def _stop_on_signal(config: BookieConfig, scope: trio.CancelScope, log: Log) -> None:
    async with trio.open_nursery() as nursery:
        if config.exit_with_parent:
            nursery.start_soon(_stop_with_stdin, scope, log)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("stopping", why=signal.Signals(number).name)
                scope.cancel()
                return


async def _stop_with_stdin(scope: trio.CancelScope, log: Log) -> None:
    def read() -> bytes:
        return os.read(0, _STDIN_BYTES)

    while await trio.to_thread.run_sync(read, abandon_on_cancel=True):
        pass
    log.info("stopping", why="standard input has ended")
    scope.cancel()


def _absolute(config: BookieConfig) -> BookieConfig:
    """Make the directories absolute: the cookie names them, wherever the process is started."""
    directories = tuple(str(Path(directory).absolute()) for directory in config.directories)
    return msgspec.structs.replace(config, directories=directories)


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return [leaf for one in inner for leaf in _leaves(one)]


def _report(log: Log, errors: list[BaseException]) -> int:
    if all(isinstance(error, (*START_ERRORS, MetadataError)) for error in errors):
        for error in errors:
            log.error("cannot go on", why=str(error))
        return _CANNOT_START
    if all(isinstance(error, ConfigError) for error in errors):
        for error in errors:
            print(f"bookie: {error}", file=sys.stderr)  # noqa: T201  as at the start
        return _BAD_CONFIG
    for error in errors:
        log.error("failed", exc_info=error)
    return _FAILED


if __name__ == "__main__":
    sys.exit(main())
