"""The records of re-replication, byte by byte, as the code itself writes them.

See `docs/formats/replication.md`.  If a test here fails, a format has changed.  Apache's records
may not change at all.
"""

from pathlib import Path

import pytest
import trio

from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Check, Lock, Underreplication
from daybook.bookie.replication.auditor import Election
from daybook.bookie.replication.status_records import Alarm, AlarmKind, StatusRecords, WorkerStatus
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemorySession, MemoryStore

GOLDEN = Path(__file__).parents[2] / "golden" / "replication_v1"
PATHS = LedgerPaths()
ROOT = "/ledgers/underreplication"
NOW_MS = 1_700_000_000_000
B1, B2 = BookieId("127.0.0.1:3181"), BookieId("127.0.0.1:3182")
ALARM = Alarm(12345, AlarmKind.NO_COPY, "b1 and b2 are gone", NOW_MS, ((2, 4), (9, 9)))
STATUS = WorkerStatus(B1, "mending", 12345, 3, 2, 10, 2500, 5000, 100.0, 50.0)


def golden(name: str) -> bytes:
    (path,) = GOLDEN.glob(f"{name}.*")
    return bytes.fromhex(path.read_text()) if path.suffix == ".hex" else path.read_bytes()


@pytest.fixture
def store() -> MemorySession:
    return MemoryStore(SystemClock()).session("b1")


async def value(store: MemorySession, path: str) -> bytes:
    record = await store.get(f"{ROOT}/{path}")
    assert record is not None, path
    return record.value


async def fill(store: MemorySession, record: bytes, path: str) -> None:
    """Store a record that another program has written."""
    await store.create(f"{ROOT}/{path}", record, make_parents=True)


MARK = "ledgers/0000/0000/0000/3039/urL0000012345"


async def test_what_apache_reads_is_written_as_ever(store: MemorySession) -> None:
    underreplication = Underreplication(store, PATHS, B1)
    await underreplication.mark(12345, [B1, B2], NOW_MS)
    assert await underreplication.lock(12345)
    await underreplication.set_lost_delay_s(60)
    await underreplication.set_check_began_ms(Check.LEDGERS, NOW_MS)
    await underreplication.pause()
    assert await value(store, "LAYOUT") == golden("layout")
    assert await value(store, MARK) == golden("mark")
    assert await value(store, "locks/urL0000012345") == golden("lock")
    assert await value(store, "lostBookieRecoveryDelay") == golden("delay")
    assert await value(store, "checkallledgersctime") == golden("checked")
    assert await value(store, "disable") == b""


async def test_what_apache_writes_is_read(store: MemorySession) -> None:
    await fill(store, golden("layout"), "LAYOUT")
    await fill(store, golden("mark"), MARK)
    await fill(store, golden("lock"), "locks/urL0000012345")
    await fill(store, golden("delay"), "lostBookieRecoveryDelay")
    await fill(store, golden("checked"), "checkallledgersctime")
    underreplication = Underreplication(store, PATHS, B2)
    await underreplication.check_layout()
    mark = await underreplication.read_mark(12345)
    assert mark is not None
    assert (mark.missing, mark.since_ms) == ((B1, B2), NOW_MS)
    assert [each async for each in underreplication.marked_ledgers()] == [12345]
    assert await underreplication.locks() == {12345: Lock(B1, ours=False)}
    assert await underreplication.lost_delay_s() == 60
    assert await underreplication.check_began_ms(Check.LEDGERS) == NOW_MS
    assert not await underreplication.is_paused()


async def test_a_vote_for_the_auditor(store: MemorySession) -> None:
    election, elected = Election(store, PATHS, B1), trio.Event()

    async def work() -> None:
        elected.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run, work)
        await elected.wait()
        assert await value(store, "auditorelection/V_0000000000") == golden("vote")
        assert await value(store, "auditorelection") == golden("vote")
        assert await Election(store, PATHS, B2).auditor() == B1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", AdminState)
async def test_orders(store: MemorySession, kind: AdminState) -> None:
    order = AdminRecord(kind, NOW_MS)
    await AdminStates(store, PATHS).give(B1, order)
    assert await value(store, f"orders/{B1}") == golden(f"order_{kind.name.lower()}")
    assert await AdminStates(store, PATHS).read(B1) == order


async def test_alarms_and_workers(store: MemorySession) -> None:
    status_records = StatusRecords(store, PATHS)
    await status_records.raise_alarm(ALARM)
    await status_records.write_status(STATUS)
    assert await value(store, "alarms/0000012345") == golden("alarm")
    assert await value(store, f"workers/{B1}") == golden("worker")
    assert await status_records.alarms() == [ALARM]
    assert await status_records.workers() == [STATUS]
