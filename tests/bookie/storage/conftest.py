"""A host with one simulated disk, and stores on it."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.oracle import entry, key
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Platter


class Host:
    """Opens stores, adds and reads, and waits for the answers."""

    def __init__(self, platter: Platter) -> None:
        self.platter = platter
        self.clock = FixedClock()
        self.directories = ["d0"]

    @asynccontextmanager
    async def store(self, **limits: object) -> AsyncGenerator[LedgerStore]:
        options = {"free_bytes_min": 0, **limits}
        async with open_store(
            disk=self.platter.mount(),
            directories=self.directories,
            index=self.platter.indexes().open,
            clock=self.clock,
            limits=StoreLimits(**options),  # type: ignore[arg-type]
        ) as store:
            yield store

    @asynccontextmanager
    async def doomed_store(self, **limits: object) -> AsyncGenerator[LedgerStore]:
        """Open a store on a host that dies inside the block; the errors of that are ignored."""
        try:
            async with self.store(**limits) as store:
                yield store
        except (HostCrashedError, BaseExceptionGroup) as error:
            if not has(error, HostCrashedError) or has(error, AssertionError):
                raise

    def logs(self, directory: str = "d0") -> list[str]:
        return [path for path in self.platter.paths() if path.startswith(f"{directory}/log/")]


def has(error: BaseException, kind: type[BaseException]) -> bool:
    """Return True if an error is of this kind, or is a group with one of this kind."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None
    return isinstance(error, kind)


@pytest.fixture
def platter() -> Platter:
    return Platter(random.Random(1))


@pytest.fixture
def host(platter: Platter) -> Host:
    return Host(platter)


class Answers:
    """Collects the answers to adds, in order."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self.statuses: list[StoreStatus] = []
        self._wanted = 0
        self._enough = trio.Event()

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        *,
        recovery: bool = False,
        lac: int = -1,
        note: str = "",
        size: int = 60,
        master_key: bytes | None = None,
    ) -> None:
        data = memoryview(entry(ledger_id, entry_id, lac=lac, note=note, size=size))
        self._wanted += 1
        self._store.add(
            ledger_id,
            entry_id,
            key(ledger_id) if master_key is None else master_key,
            data,
            recovery=recovery,
            done=self._done,
        )

    def _done(self, status: StoreStatus) -> None:
        self.statuses.append(status)
        self._enough.set()

    async def all(self) -> list[StoreStatus]:
        """Wait until every add is answered; return the answers since the last call."""
        while len(self.statuses) < self._wanted:
            self._enough = trio.Event()
            await self._enough.wait()
        statuses, self.statuses, self._wanted = self.statuses, [], 0
        return statuses


async def status_of(reading: object) -> StoreStatus:
    """Return the status with which an awaitable of the store ends."""
    try:
        await reading  # type: ignore[misc]
    except StoreError as error:
        return error.status
    return StoreStatus.OK
