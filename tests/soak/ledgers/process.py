"""A process of clients: `python -m tests.soak.ledgers.process writer --name writer-1.1 ...`.

The clients record each call before they make it, and each answer as soon as it arrives; so a
process that is killed or paused has a history up to that time.  It runs until it is killed.
"""

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from daybook.clients import ledgers
from tests.history.recorder import FileSink, Recorder
from tests.soak.clock import Clock
from tests.soak.ledgers.read import read
from tests.soak.ledgers.recover import recover
from tests.soak.ledgers.worker import Worker
from tests.soak.ledgers.write import write

_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class _Role:
    task: Callable[[Worker, ledgers.Client, int], Awaitable[None]]
    tasks: int


_ROLES = {"writer": _Role(write, 3), "recoverer": _Role(recover, 2), "reader": _Role(read, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=list(_ROLES))
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--first-id", type=int, required=True)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--history", type=Path, required=True)
    chosen = parser.parse_args()
    with FileSink(chosen.history) as sink:
        recorder = Recorder(chosen.name, now_ns=Clock().now_ns, sink=sink)
        worker = Worker(chosen.name, chosen.seed, chosen.round, chosen.first_id, recorder)
        print('{"ready": true}', flush=True)
        trio.run(_work, worker, _ROLES[chosen.role], f"zk://{chosen.zookeeper}/ledgers")


async def _work(worker: Worker, role: _Role, address: str) -> None:
    while True:
        try:
            async with (
                ledgers.connect(address, session_timeout_s=4.0) as client,
                trio.open_nursery() as nursery,
            ):
                for number in range(role.tasks):
                    nursery.start_soon(role.task, worker, client, number)
        except ledgers.MetadataUnavailableError:
            await trio.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
