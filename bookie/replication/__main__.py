"""`python -m daybook.bookie.replication --config FILE`: auto-recovery as a process of its own.

It prints one line of JSON on standard output when it has a session, and logs to standard error:

    {"ready": true, "name": "host-4711", "pid": 4711}

SIGTERM and SIGINT end it; with `exit_with_parent` the end of standard input does the same.  Another
worker, or the next run, restarts the copies that were under way.

Exit codes: 0 stopped, 1 the settings are invalid, 2 ZooKeeper does not answer at the start,
or refuses the identity.
"""

import argparse
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from random import Random, SystemRandom

import trio

from daybook.bookie.ledger.security import open_bookie_security
from daybook.bookie.replication.config import AutoRecoveryConfig, load
from daybook.bookie.replication.host import run_autorecovery
from daybook.wire import process
from daybook.wire.clock import SystemClock
from daybook.wire.logging import log_to_stderr
from daybook.wire.metadata.announce import Process
from daybook.wire.metadata.store import AccessDeniedError, StoreUnavailableError
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork

_STOPPED, _BAD_CONFIG, _CANNOT_START = range(3)
_STDIN_BYTES = 1 << 16
_log = logging.getLogger("autorecovery")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m daybook.bookie.replication", description=__doc__
    )
    parser.add_argument("--config", type=Path, help="a TOML file; the environment goes over it")
    arguments = parser.parse_args()
    try:
        config = load(arguments.config, os.environ)
    except ConfigError as error:
        print(f"autorecovery: {error}", file=sys.stderr)  # noqa: T201  there is no log yet
        return _BAD_CONFIG
    process.prepare()
    logging.basicConfig(
        level=logging.INFO, format="timestamp=%(asctime)s level=%(levelname)s event=%(message)r"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        trio.run(_run, config)
    except* (StoreUnavailableError, AccessDeniedError) as errors:
        print(f"autorecovery: {errors.exceptions[0]}", file=sys.stderr)  # noqa: T201
        return_code = _CANNOT_START
    else:
        return_code = _STOPPED
    return return_code


async def _run(config: AutoRecoveryConfig) -> None:
    name = config.name or f"{socket.gethostname()}-{os.getpid()}"
    async with (
        open_zookeeper(
            config.zookeeper,
            session_timeout_s=config.session_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            access=config.zookeeper_access,
            process=Process("autorecovery", name),
            log=log_to_stderr(),
        ) as store,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_stop_when_told, nursery.cancel_scope)
        if config.exit_with_parent:
            nursery.start_soon(_stop_with_stdin, nursery.cancel_scope)
        security = open_bookie_security(
            config.bookie_access, clock=SystemClock(), log=log_to_stderr()
        )
        print(json.dumps({"ready": True, "name": name, "pid": os.getpid()}), flush=True)  # noqa: T201
        await run_autorecovery(
            store=store,
            network=TcpNetwork(),
            rng=Random(SystemRandom().getrandbits(64)),  # noqa: S311  nothing secret
            clock=SystemClock(),
            root=config.ledgers_root,
            name=name,
            limits=config.limits,
            security=security,
        )


async def _stop_when_told(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            _log.info("stopping: %s", signal.Signals(number).name)
            scope.cancel()
            return


async def _stop_with_stdin(scope: trio.CancelScope) -> None:
    def read() -> bytes:
        return os.read(0, _STDIN_BYTES)

    while await trio.to_thread.run_sync(read, abandon_on_cancel=True):
        pass
    _log.info("stopping: standard input has ended")
    scope.cancel()


if __name__ == "__main__":
    sys.exit(main())
