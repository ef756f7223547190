"""`python -m daybook.broker --config FILE`: a broker as a process.

The broker prints one line of JSON on standard output when it serves, and logs to standard error:

    {"ready": true, "name": "...", "service_url": "pulsar://...", "admin_url": "http://...", ...}

SIGTERM and SIGINT stop it in order: it closes its topics and releases its bundles.  With
`exit_with_parent`, the end of standard input does the same.  A second signal stops it at once.

Exit codes: 0 stopped, 1 the settings are not valid, 2 the broker cannot start with these files
or in this environment, 3 it failed, 4 the watchdog ended it because it answered nobody.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import cast

import msgspec
import trio

from daybook.bookie.ledger.security import open_bookie_security
from daybook.broker.config import BrokerConfig, load, with_advertised_host
from daybook.broker.errors import BrokerError
from daybook.broker.ownership.membership import Member
from daybook.broker.protocol.watchdog import WatchdogLimits
from daybook.broker.server import RunningBroker, run_broker
from daybook.broker.tls import BrokerTls, open_tls
from daybook.broker.watchdog import Watchdog
from daybook.wire import process
from daybook.wire.clock import SystemClock
from daybook.wire.descriptors import ShortageLog, bounds_of_ports
from daybook.wire.errors import TlsError
from daybook.wire.http import CutClients, HttpPort
from daybook.wire.logging import Log, LogLimiter, forward_to, log_to_stderr
from daybook.wire.metadata.announce import Process
from daybook.wire.metadata.store import MetadataError
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.own_address import is_loopback, reachable_host
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork

_STOPPED, _BAD_CONFIG, _CANNOT_START, _FAILED = range(4)
_STDIN_BYTES = 1 << 16
_DESCRIPTORS_KEPT = 512  # left for the metadata store, bookies, brokers, probes, files
_TICKS = 60  # the ticks of the watchdog in the time after which it acts
_START_ERRORS = (MetadataError, BrokerError, ConfigError, OSError)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m daybook.broker", description="Run a broker.")
    parser.add_argument(
        "--config",
        type=Path,
        help="a TOML file with the settings; variables DAYBOOK_BROKER_* override it",
    )
    arguments = parser.parse_args()
    try:
        config = with_advertised_host(load(arguments.config, os.environ), reachable_host)
    except ConfigError as error:
        print(f"broker: {error}", file=sys.stderr)  # noqa: T201  there is no log yet
        return _BAD_CONFIG
    process.prepare()
    log = log_to_stderr()
    forward_to(log)
    _warn_of_exposure(config, log)
    try:
        config = _within_descriptors(config, log)
    except ConfigError as error:
        log.error("the broker cannot start", why=str(error))
        return _CANNOT_START
    try:
        trio.run(_run, config, log)
    except BaseExceptionGroup as group:
        return _report(log, list(_leaves(group)))
    except Exception as error:
        return _report(log, [error])
    return _STOPPED


def _warn_of_exposure(config: BrokerConfig, log: Log) -> None:
    """Log one warning if other machines reach a broker that asks nobody who they are."""
    try:
        if config.authentication or is_loopback(config.host):
            return
    except OSError:
        return  # The port cannot be opened there, which is an error of its own.
    log.warning(
        "everybody who reaches this broker may read, write and delete everything: set"
        " authentication and authorization (docs/security.md), or keep others from its ports",
        host=config.host,
        advertised_host=config.public_host,
    )


def _within_descriptors(config: BrokerConfig, log: Log) -> BrokerConfig:
    """Return settings whose connections fit under the limit of open files."""
    shares = bounds_of_ports(
        reserve=_DESCRIPTORS_KEPT,
        service_max=config.connections_max,
        http_max=config.http_connections_max,
        warn=log.warning,
    )
    return msgspec.structs.replace(
        config, connections_max=shares.service, http_connections_max=shares.http
    )


def _watchdog(
    config: BrokerConfig, running: RunningBroker, tls: BrokerTls | None, log: Log
) -> Watchdog:
    limits = WatchdogLimits(
        silent_s=config.watchdog_silent_s,
        quiet_s=config.watchdog_quiet_s,
        tick_s=config.watchdog_silent_s / _TICKS,
    )

    def others() -> Sequence[Member] | None:
        return running.peers.registered if running.ownership.contact else None

    return Watchdog(
        running.probe,
        limits,
        broker_id=running.identity.broker_id,
        others=others,
        log=log,
        tls=None if tls is None else tls.client,
        prefers_tls=config.prefers_tls,
        token=running.peers.token,
    )


async def _run(config: BrokerConfig, log: Log) -> None:
    shortage = ShortageLog(log.warning)
    clock = SystemClock()
    tls = open_tls(config, clock, log)
    bookie_security = open_bookie_security(config.bookie_access, clock=clock, log=log)
    with ExitStack() as ports:
        cut = CutClients(_log_of_cuts(log))
        http, https = _http_ports(config, tls, shortage, log, ports, cut)
        async with (
            open_zookeeper(
                config.zookeeper,
                session_timeout_s=config.session_timeout_s,
                connect_timeout_s=config.start_timeout_s,
                access=config.zookeeper_access,
                process=Process("broker", config.shown_name),
                log=log,
            ) as store,
            trio.open_nursery() as nursery,
        ):

            async def broker(*, task_status: trio.TaskStatus[RunningBroker]) -> None:
                await run_broker(
                    config,
                    store=store,
                    network=TcpNetwork(shortage.failed),
                    clock=clock,
                    rng=SystemRandom(),
                    http=http,
                    https=https,
                    tls=tls,
                    cut_http_clients=cut,
                    bookie_security=bookie_security,
                    log=log,
                    task_status=task_status,
                )

            serving: list[RunningBroker] = []
            nursery.start_soon(_stop_on_signal, config, serving, nursery.cancel_scope, log)
            running: RunningBroker = await nursery.start(broker)
            serving.append(running)
            if config.watchdog:
                nursery.start_soon(_watchdog(config, running, tls, log).run)
            process.settle()
            _print_ready(running)


def _log_of_cuts(log: Log) -> Callable[[str, str], None]:
    limited = LogLimiter(log)

    def cut(peer: str, why: str) -> None:
        limited.info("the broker cuts an HTTP client", kind=why, peer=peer, why=why)

    return cut


def _http_ports(
    config: BrokerConfig,
    tls: BrokerTls | None,
    shortage: ShortageLog,
    log: Log,
    ports: ExitStack,
    cut: CutClients,
) -> tuple[HttpPort | None, HttpPort | None]:
    """Bind the HTTP ports of the settings, without TLS and with it.  Raise OSError."""
    limited = LogLimiter(log)

    def handshake_failed(peer: str, error: TlsError) -> None:
        limited.info(
            "the TLS handshake of an HTTP client has failed",
            kind=str(error),
            peer=peer,
            why=str(error),
        )

    http = https = None
    if config.http_port >= 0:
        http = ports.enter_context(
            HttpPort(
                config.host,
                config.http_port,
                connections_max=config.http_connections_max,
                on_accept_failed=shortage.failed,
                on_cut=cut,
            )
        )
    if config.https_port >= 0:
        assert tls is not None
        https = ports.enter_context(
            HttpPort(
                config.host,
                config.https_port,
                connections_max=config.http_connections_max,
                on_accept_failed=shortage.failed,
                tls=tls.server,
                on_handshake_failed=handshake_failed,
                on_cut=cut,
                beside=http,
            )
        )
    return http, https


async def _stop_on_signal(
    config: BrokerConfig, serving: list[RunningBroker], scope: trio.CancelScope, log: Log
) -> None:
    """Stop in order at the first signal, and at once at the second or after a timeout."""
    signs, receive = trio.open_memory_channel[str](8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_wait_for_signals, signs)
        if config.exit_with_parent:
            nursery.start_soon(_wait_for_end_of_stdin, signs)
        log.info("the broker is stopping", why=await receive.receive())
        with trio.move_on_after(config.shutdown_timeout_s):
            async with trio.open_nursery() as stopping:
                stopping.start_soon(_cancel_at_next, receive, stopping.cancel_scope)
                for running in serving:
                    await running.stop()
                stopping.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    scope.cancel()


async def _cancel_at_next(signs: trio.MemoryReceiveChannel[str], scope: trio.CancelScope) -> None:
    await signs.receive()
    scope.cancel()


async def _wait_for_signals(signs: trio.MemorySendChannel[str]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await signs.send(signal.Signals(number).name)


async def _wait_for_end_of_stdin(signs: trio.MemorySendChannel[str]) -> None:
    def read() -> bytes:
        return os.read(0, _STDIN_BYTES)

    while await trio.to_thread.run_sync(read, abandon_on_cancel=True):
        pass
    await signs.send("standard input has ended")


def _print_ready(running: RunningBroker) -> None:
    facts = {
        "ready": True,
        "name": running.name,
        "broker_id": running.identity.broker_id,
        "service_url": running.identity.service_url,
        "service_url_tls": running.identity.service_url_tls,
        "admin_url": running.identity.http_url,
        "admin_url_tls": running.identity.http_url_tls,
        "port": running.port,
        "tls_port": running.tls_port,
        "http_port": running.http_port,
        "https_port": running.https_port,
        "pid": os.getpid(),
    }
    print(msgspec.json.encode(facts).decode(), flush=True)  # noqa: T201  for the parent process


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _report(log: Log, errors: list[BaseException]) -> int:
    """Log why the broker has ended, and return its exit code."""
    if all(isinstance(error, _START_ERRORS) for error in errors):
        for error in errors:
            log.error("the broker cannot continue", why=str(error))
        wrong = all(isinstance(error, ConfigError) for error in errors)
        return _BAD_CONFIG if wrong else _CANNOT_START
    for error in errors:
        log.error("the broker has failed, which is a bug: please report it", exc_info=error)
    return _FAILED


if __name__ == "__main__":
    sys.exit(main())
