"""Status records, the queue of ledgers to re-replicate, and the settings, as they are stored."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.replication.config import load
from daybook.bookie.replication.status_records import Alarm, AlarmKind, StatusRecords, WorkerStatus
from daybook.bookie.replication.worker import Backlog, Candidate
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.settings import ConfigError

PATHS = LedgerPaths()
ALARM = Alarm(7, AlarmKind.NO_COPY, "nobody has it", 5, ((2, 4), (9, 9)))
STATUS = WorkerStatus("w1", "mending", 7, 3, 2, 10, 2500, 5000, 100.0, 50.0)


def test_records_are_json_with_a_version() -> None:
    assert ALARM.encode() == (
        b'{"version": 1, "trouble": "no copy", "why": "nobody has it", "since_ms": 5,'
        b' "entries": [[2, 4], [9, 9]]}'
    )
    assert Alarm.decode(7, ALARM.encode()) == ALARM
    assert json.loads(STATUS.encode())["version"] == 1
    assert WorkerStatus.decode(STATUS.encode()) == STATUS


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff", b'{"version": 2}', b'{"version": 1}'])
def test_records_of_another_kind_are_said(value: bytes) -> None:
    with pytest.raises(MalformedRecordError):
        Alarm.decode(1, value)
    with pytest.raises(MalformedRecordError):
        WorkerStatus.decode(value)
    with pytest.raises(MalformedRecordError):
        AdminRecord.decode(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("order", b'{"version": 1, "order": "leave", "since_ms": Infinity}'),
        ("order", b'{"version": 1, "order": ["leave"], "since_ms": 1}'),
        ("alarm", b'{"version": 1, "trouble": "no copy", "why": 1, "since_ms": 1e999,'
         b' "entries": []}'),
        ("alarm", b'{"version": 1, "trouble": "no copy", "why": "", "since_ms": 1,'
         b' "entries": [[1, Infinity]]}'),
        ("status", STATUS.encode().replace(b"2500", b'"many"')),
    ],
)  # fmt: skip
def test_records_with_nonsense_in_them_are_said(kind: str, value: bytes) -> None:
    decode: dict[str, Callable[[bytes], object]] = {
        "order": AdminRecord.decode,
        "alarm": partial(Alarm.decode, 1),
        "status": WorkerStatus.decode,
    }
    with pytest.raises(MalformedRecordError):
        decode[kind](value)


async def test_an_alarm_that_says_the_same_keeps_its_time() -> None:
    status_records = StatusRecords(MemoryStore(SystemClock()).session("w"), PATHS)
    await status_records.raise_alarm(ALARM)
    await status_records.raise_alarm(Alarm(7, ALARM.trouble, ALARM.why, 99, ALARM.entries))
    assert await status_records.alarms() == [ALARM]
    other = Alarm(7, AlarmKind.NO_SPARE, "none", 100)
    await status_records.raise_alarm(other)
    assert await status_records.alarms() == [other]
    await status_records.clear_alarm(7)
    await status_records.clear_alarm(7)
    assert await status_records.alarms() == []


async def test_the_status_of_a_worker_goes_with_its_session() -> None:
    memory = MemoryStore(SystemClock())
    first, second = memory.session("w"), memory.session("w2")
    await StatusRecords(first, PATHS).write_status(STATUS)
    await StatusRecords(first, PATHS).write_status(STATUS)
    assert await StatusRecords(second, PATHS).workers() == [STATUS]
    await StatusRecords(second, PATHS).write_status(STATUS)  # the same worker after a restart
    memory.expire(first.session_id)
    assert await StatusRecords(second, PATHS).workers() == [STATUS]
    memory.expire(second.session_id)
    assert await StatusRecords(memory.session("x"), PATHS).workers() == []


async def test_an_order_that_does_not_parse_is_an_order() -> None:
    store = MemoryStore(SystemClock()).session("w")
    await store.create(f"{PATHS.underreplication}/orders/b1", b"?", make_parents=True)
    orders = await AdminStates(store, PATHS).list()
    assert [order.kind for order in orders.values()] == [AdminState.READ_ONLY]


def test_the_fewest_copies_are_next_unless_they_just_failed() -> None:
    backlog = Backlog(10, 40)
    backlog.replace([Candidate(1, 2, 100), Candidate(2, 1, 10), Candidate(3, 1, 1)])
    assert (backlog.pending, backlog.rest_bytes) == (3, 111)
    order: list[int] = []
    for done in (False, True, True):
        candidate = backlog.next(0)
        assert candidate is not None
        order.append(candidate.ledger_id)
        backlog.ended(candidate.ledger_id, 0, done=done)
    assert order == [2, 3, 1]
    assert backlog.next(9.9) is None
    for backoff_s in (10, 20, 40, 40):
        assert backlog.next(backoff_s - 0.1) is None
        assert backlog.next(backoff_s) is not None
        backlog.ended(2, 0, done=False)
    backlog.forget_failures()
    assert backlog.next(0) is not None


def test_settings_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('name = "w1"\nrate_bytes_per_s = 1000\n')
    config = load(file, {"DAYBOOK_AUTORECOVERY_LOST_DELAY_S": "5", "OTHER": "x"})
    assert (config.name, config.limits.rate_bytes_per_s, config.limits.lost_delay_s) == (
        "w1",
        1000,
        5,
    )
    assert config.limits.fence_open_after_s is None


@pytest.mark.parametrize(
    "environment",
    [
        {"DAYBOOK_AUTORECOVERY_SPEED": "1"},
        {"DAYBOOK_AUTORECOVERY_RATE_BYTES_PER_S": "0"},
        {"DAYBOOK_AUTORECOVERY_LEDGERS_ROOT": "ledgers"},
        {"DAYBOOK_AUTORECOVERY_ZOOKEEPER": ""},
    ],
)
def test_settings_that_make_no_sense_are_said(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        load(None, environment)
