"""`daybook autorecovery`, `ledgers` and `bookies` on a metadata store in memory."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import StringIO
from random import Random

import pytest
import trio

from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo
from daybook.bookie.registry.registrations import register_bookie as register
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.decommission import Decommission
from daybook.bookie.replication.status_records import Alarm, AlarmKind, StatusRecords, WorkerStatus
from daybook.managed_ledger.records import custom_metadata, log_path
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.metadata.store import ANY
from tests.clients.cli.conftest import Daybook

PATHS = LedgerPaths()
B1 = BookieId("b1")
LOG = "public/default/persistent/t"


class Stored:
    """The metadata store that commands read and write."""

    def __init__(self) -> None:
        self.memory = MemoryStore(SystemClock())
        self.session: MemorySession = self.memory.session("before")
        trio.run(self._fill)

    async def _fill(self) -> None:
        store = self.session
        await ensure_layout(store, PATHS, Random(1))
        await create_cookie(store, PATHS, Cookie("b1", ["/j"], ["/l"], "i"))
        await register(store, PATHS, BookieInfo("b1", "127.0.0.1", 1), read_only=True)

    async def come_back(self) -> None:
        """b1, with empty directories."""
        await create_cookie(self.session, PATHS, Cookie("b1", ["/j"], ["/l"], "i"))

    async def ledger(self, metadata: LedgerMetadata) -> int:
        async with trio.open_nursery() as nursery:
            catalog = LedgerMetadataStore(self.session, PATHS, Random(1))
            ledger_id, _ = await catalog.create(metadata, nursery)
        return ledger_id


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    stored = Stored()

    @asynccontextmanager
    async def open_memory(hosts: str, **_: object) -> AsyncGenerator[MemorySession]:
        assert hosts == "zk:1"
        yield stored.memory.session("cli")

    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    monkeypatch.setenv("DAYBOOK_ZOOKEEPER", "zk:1")
    return stored


def closed(custom: dict[str, bytes] | None = None) -> LedgerMetadata:
    return LedgerMetadata(
        quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (B1,)),), custom=custom or {}
    ).closed_at(-1, 0)


def test_status_when_all_is_well(daybook: Daybook, stored: Stored) -> None:
    code, out, _ = daybook("autorecovery", "status", "--output", "json")
    assert code == 0
    status = json.loads(out)
    assert (status["state"], status["under_replicated"], status["alarms"]) == ("on", 0, [])


def test_pause_and_resume(daybook: Daybook, stored: Stored) -> None:
    assert daybook("autorecovery", "pause")[0] == 0
    code, out, _ = daybook("autorecovery", "status")
    assert code == 4
    assert out.splitlines()[0].split() == ["state", "paused"]
    assert "is paused" in daybook("autorecovery", "trigger")[1]
    assert daybook("autorecovery", "resume")[0] == 0
    assert daybook("autorecovery", "status")[0] == 0
    assert "was asked to look" in daybook("autorecovery", "trigger")[1]


def test_trigger_writes_the_delay_again(daybook: Daybook, stored: Stored) -> None:
    async def version() -> int:
        record = await stored.session.get(f"{PATHS.underreplication}/lostBookieRecoveryDelay")
        return -1 if record is None else record.stat.version

    assert daybook("autorecovery", "trigger")[0] == 0
    assert trio.run(version) == -1  # no delay is set, and this does not set one
    trio.run(Underreplication(stored.session, PATHS, "").set_lost_delay_s, 90)
    first = trio.run(version)
    assert daybook("autorecovery", "trigger")[0] == 0
    assert trio.run(version) == first + 1


@pytest.mark.parametrize("command", ["status", "pause", "resume", "trigger"])
def test_where_there_are_no_ledgers_that_is_said(
    daybook: Daybook, stored: Stored, command: str
) -> None:
    code, out, err = daybook("autorecovery", command, "--root", "/elsewhere")
    assert (code, out) == (1, "")
    assert "--ledgers-root" in err
    assert trio.run(stored.session.get, "/elsewhere/underreplication") is None


def test_status_when_nobody_works(daybook: Daybook, stored: Stored) -> None:
    trio.run(Underreplication(stored.session, PATHS, "").mark, 7, [B1], 5)
    assert daybook("autorecovery", "status")[0] == 5


def test_status_of_records_that_make_no_sense(daybook: Daybook, stored: Stored) -> None:
    async def fill() -> None:
        base = PATHS.underreplication
        for path, value in {
            "alarms/0000000007": b'{"version": 1, "trouble": "no copy", "why": "x",'
            b' "since_ms": Infinity, "entries": []}',
            "alarms/nonsense": b"?",
            "workers/w1": b'{"version": 1, "worker": "w1", "copied_bytes": "many"}',
            "locks/nonsense": b"\xff",
            "lostBookieRecoveryDelay": b"soon",
            "checkallledgersctime": b"\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        }.items():
            await stored.session.create(f"{base}/{path}", value, make_parents=True)
        late = Alarm(8, AlarmKind.NO_SPARE, "none", 1 << 60)
        await StatusRecords(stored.session, PATHS).raise_alarm(late)

    trio.run(fill)
    code, out, _ = daybook("autorecovery", "status")
    assert code == 3
    assert ["8", "no", "spare", "-", "?", "none"] in [line.split() for line in out.splitlines()]
    status = json.loads(daybook("autorecovery", "status", "--output", "json")[1])
    assert (status["all_checked"], status["lost_bookie_delay_s"]) == ("?", None)
    assert (status["workers"], len(status["alarms"])) == ([], 1)


def test_status_shows_workers_and_alarms(daybook: Daybook, stored: Stored) -> None:
    async def fill() -> None:
        status_records = StatusRecords(stored.session, PATHS)
        await status_records.write_status(
            WorkerStatus("w1", "mending", 7, 3, 2, 10, 2_500_000, 5_000_000, 1e6, 5.0)
        )
        await status_records.raise_alarm(Alarm(7, AlarmKind.NO_COPY, "nobody has it", 0, ((2, 4),)))
        await Underreplication(stored.session, PATHS, "w").mark(7, [B1], 1)

    trio.run(fill)
    code, out, _ = daybook("autorecovery", "status")
    assert code == 3
    lines = [line.split() for line in out.splitlines()]
    assert ["under_replicated", "1"] in lines
    assert ["w1", "mending", "7", "3", "2", "2", "MB", "5", "MB", "5", "s"] in lines
    assert ["7", "no", "copy", "2-4", "1970-01-01T00:00:00+00:00", "nobody", "has", "it"] in lines


def test_read_only_gives_an_order_and_takes_it_back(
    daybook: Daybook, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def order() -> AdminRecord | None:
        return await AdminStates(stored.session, PATHS).read(B1)

    code, out, _ = daybook("bookies", "read-only", "b1")
    assert (code, out) == (0, "b1 takes no new entries.\n")
    given = trio.run(order)
    assert given is not None
    assert given.kind is AdminState.READ_ONLY
    monkeypatch.setattr("daybook.clients.cli.bookies._OBEY_S", 0.05)
    code, out, _ = daybook("bookies", "read-only", "b1", "--off")
    assert code == 0
    assert "b1 takes no new entries yet" in out, "it has another reason: what it announces counts"
    assert trio.run(order) is None


def test_a_bookie_that_nobody_knows_is_said(daybook: Daybook, stored: Stored) -> None:
    for arguments in (("read-only", "b9"), ("decommission", "b9"), ("recommission", "b9")):
        code, _, err = daybook("bookies", *arguments)
        assert code == 1
        assert "b9" in err
        assert "`daybook bookies list` shows" in err


def test_an_order_that_is_taken_back_is_said_to_programs_too(
    daybook: Daybook, stored: Stored
) -> None:
    async def order() -> AdminRecord | None:
        return await AdminStates(stored.session, PATHS).read(B1)

    async def retire() -> None:
        await AdminStates(stored.session, PATHS).give(B1, AdminRecord(AdminState.RETIRE, 1))

    trio.run(retire)
    code, _, err = daybook("bookies", "read-only", "b1")
    assert code == 1
    assert "`daybook bookies recommission b1` takes it back" in err
    for other in ("--wait-retention", "--no-wait"):
        code, _, err = daybook("bookies", "decommission", "b1", "--cancel", other)
        assert code == 2
        assert "leave out the other options" in err
        assert trio.run(order) is not None
    code, out, _ = daybook("bookies", "decommission", "b1", "--cancel", "--output", "json")
    assert code == 0
    assert json.loads(out) == {"bookie": "b1", "state": "taken back"}
    assert trio.run(order) is None


def test_a_bookie_that_nothing_names_leaves_at_once(daybook: Daybook, stored: Stored) -> None:
    code, out, _ = daybook("bookies", "decommission", "b1", "--output", "json")
    assert code == 0
    assert json.loads(out) == {"bookie": "b1", "state": "left", "running": True}
    # Its process runs on; it has to come back with empty directories before it is taken back.
    code, _, err = daybook("bookies", "recommission", "b1")
    assert code == 1
    assert "Start it with empty directories first" in err
    trio.run(stored.come_back)
    assert daybook("bookies", "recommission", "b1")[0] == 0


def test_waiting_for_retention_moves_nothing(daybook: Daybook, stored: Stored) -> None:
    trio.run(stored.ledger, closed())

    async def left() -> tuple[AdminRecord | None, list[int]]:
        marks = [
            ledger_id
            async for ledger_id in Underreplication(stored.session, PATHS, "").marked_ledgers()
        ]
        return await AdminStates(stored.session, PATHS).read(B1), marks

    code, out, _ = daybook("bookies", "decommission", "b1", "--wait-retention", "--no-wait")
    assert code == 0
    assert "`daybook bookies health` shows what still names it" in out
    order, marked = trio.run(left)
    assert order is not None
    assert order.kind is AdminState.RETIRE
    assert marked == []
    assert daybook("bookies", "recommission", "b1")[0] == 0
    assert trio.run(left)[0] is None


@pytest.mark.parametrize("command", ["decommission", "replace-disk"])
def test_who_interrupts_is_told_that_the_order_stands(
    daybook: Daybook, stored: Stored, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    async def interrupted(_: Decommission) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Decommission, "remaining", interrupted)
    code, out, err = daybook("bookies", command, "b1")
    assert (code, out) == (1, "")
    assert "stays read-only" in err
    assert "`daybook bookies recommission b1`" in err


def test_disks_are_replaced_in_two_steps(daybook: Daybook, stored: Stored) -> None:
    code, out, _ = daybook("bookies", "replace-disk", "b1", "--no-wait", "--output", "json")
    assert code == 0
    assert json.loads(out) == {"bookie": "b1", "state": "empty", "fenced": None}
    assert "empty its directories" in daybook("bookies", "replace-disk", "b1", "--no-wait")[1]
    trio.run(stored.come_back)
    code, out, err = daybook("bookies", "replace-disk", "b1", "--output", "json")
    assert json.loads(out) == {"bookie": "b1", "state": "replaced", "fenced": 0}
    assert "waiting for it" not in err, "it is back"


def test_a_bookie_that_takes_no_fences_is_not_taken_back(daybook: Daybook, stored: Stored) -> None:
    assert daybook("bookies", "decommission", "b1")[0] == 0
    others = LedgerMetadata(
        quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (BookieId("b7"),)),)
    ).closed_at(-1, 0)
    ledger_id = trio.run(stored.ledger, others)
    trio.run(stored.come_back)
    code, _, err = daybook("bookies", "recommission", "b1")  # nobody listens there
    assert code == 1
    assert f"ledger {ledger_id} is not fenced there" in err
    assert trio.run(AdminStates(stored.session, PATHS).read, B1) is not None


def test_metadata_that_do_not_parse_are_shown_beside_the_others(
    daybook: Daybook, stored: Stored
) -> None:
    garbled = trio.run(stored.ledger, closed())
    trio.run(stored.ledger, closed())
    trio.run(stored.session.set, PATHS.ledger(garbled), b"?", ANY)
    code, out, _ = daybook("ledgers", "check", "--output", "json")
    assert code == 4
    assert [row["state"] for row in json.loads(out)] == ["unreadable", "whole"]
    code, out, _ = daybook("ledgers", "list", "--output", "json")
    assert code == 0
    assert [row["state"] for row in json.loads(out)] == ["unreadable", "CLOSED"]


def test_health_counts_what_depends_on_a_bookie(daybook: Daybook, stored: Stored) -> None:
    trio.run(stored.ledger, closed())
    code, out, _ = daybook("bookies", "health", "--output", "json")
    assert code == 3  # nobody listens there
    (row,) = json.loads(out)
    assert (row["bookie"], row["state"], row["answers"]) == ("b1", "readonly", False)
    assert (row["ledgers"], row["at_writers"], row["marked"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("readonly", "ack", "code"),
    [(0, None, 0), (1, None, 0), (2, None, 3), (3, None, 3), (2, 1, 0), (1, 3, 3)],
)
def test_health_says_when_nothing_can_be_published(
    daybook: Daybook,
    stored: Stored,
    monkeypatch: pytest.MonkeyPatch,
    readonly: int,
    ack: int | None,
    code: int,
) -> None:
    """All three bookies answer; `readonly` of them take no entries."""

    async def fill() -> None:
        for number in (5, 6, 7):
            name = f"b{number}"
            await create_cookie(stored.session, PATHS, Cookie(name, ["/j"], ["/l"], "i"))
            info = BookieInfo(name, "127.0.0.1", 1)
            await register(stored.session, PATHS, info, read_only=number < 5 + readonly)
        await stored.session.delete(f"{PATHS.cookies}/b1", ANY)
        await stored.session.delete(f"{PATHS.available}/readonly/b1", ANY)

    async def probe(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    monkeypatch.setattr("daybook.bookie.ledger.bookie_client.BookieClient.probe", probe)
    trio.run(fill)
    options = [] if ack is None else ["--ack-quorum", str(ack)]
    found, out, err = daybook("bookies", "health", "--output", "json", *options)
    assert len(json.loads(out)) == 3
    assert found == code
    said = f"Nothing can be published: {3 - readonly} of 3 bookies take entries"
    assert (said in err) == (code == 3)
    assert ("--off" in err) == (code == 3)


def test_check_of_empty_ledgers_asks_nobody(daybook: Daybook, stored: Stored) -> None:
    assert daybook("ledgers", "check")[1] == (
        "There is nothing to check: no closed fragment has entries.\n"
    )
    trio.run(stored.ledger, closed())
    code, out, _ = daybook("ledgers", "check")
    assert (code, out) == (0, "All copies are there, in 1 fragment.\n")
    gone = LedgerMetadata(
        quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (BookieId("b7"),)),)
    ).closed_at(0, 5)
    trio.run(stored.ledger, gone)
    code, out, _ = daybook("ledgers", "check", "--mend", "--output", "json")
    assert code == 5
    assert [row["state"] for row in json.loads(out)] == ["whole", "no copy"]

    async def marked() -> list[int]:
        return [i async for i in Underreplication(stored.session, PATHS, "").marked_ledgers()]

    assert trio.run(marked) == [1]


def test_an_open_ledger_of_nobody_is_closed_by_recovery_with_loss(
    daybook: Daybook, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    opened = LedgerMetadata(quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (BookieId("b7"),)),))
    ledger_id = trio.run(stored.ledger, opened)
    for unasked in (("--yes",), ()):
        code, _, err = daybook("ledgers", "delete", str(ledger_id), *unasked)
        assert code == 1
        assert "is OPEN" in err
        assert "Delete ledger" not in err
    code, _, err = daybook("ledgers", "recover", str(ledger_id))
    assert code == 1
    assert "--accept-loss" in err
    code, _, err = daybook("ledgers", "recover", str(ledger_id), "--accept-loss")
    assert code == 1
    assert "will be lost. Continue?" in err
    code, out, _ = daybook(
        "ledgers", "recover", str(ledger_id), "--accept-loss", "--yes", "--output", "json"
    )
    assert code == 0
    code, _, err = daybook("ledgers", "recover", str(ledger_id), "--accept-loss")
    assert (code, err) == (0, ""), "what is closed cannot lose anything"
    record = json.loads(out)
    assert (record["was"], record["state"], record["entries"]) == ("IN_RECOVERY", "CLOSED", 0)
    assert (record["given_up"], record["lost_from"]) == ("b7", 0)
    assert daybook("ledgers", "delete", str(ledger_id), "--yes")[0] == 0
    assert daybook("ledgers", "show", str(ledger_id))[0] == 1


def test_why_a_ledger_is_kept(daybook: Daybook, stored: Stored) -> None:
    async def fill() -> list[int]:
        ids = [await stored.ledger(closed(custom_metadata(LOG))) for _ in range(3)]
        ids += [
            await stored.ledger(closed()),
            await stored.ledger(closed(custom_metadata("a/b/persistent/c"))),
        ]
        info = ManagedLedgerInfo()
        for ledger_id in ids[1:3]:
            info.ledgerInfo.add(ledgerId=ledger_id)
        await stored.session.create(log_path(LOG), info.SerializeToString(), make_parents=True)
        cursor = ManagedCursorInfo(
            cursorsLedgerId=-1, markDeleteLedgerId=ids[1], markDeleteEntryId=4
        )
        await stored.session.create(f"{log_path(LOG)}/billing", cursor.SerializeToString())
        return ids

    dropped, held, last, plain, orphan = trio.run(fill)
    expected = {
        dropped: (False, [], "does not list it"),
        held: (True, ["billing"], f"acknowledged everything up to {held}:4"),
        last: (True, [], "new messages go there"),
        plain: (False, [], "No topic owns it"),
        orphan: (False, [], "orphan"),
    }
    for ledger_id, (listed, holders, words) in expected.items():
        record = json.loads(daybook("ledgers", "why-kept", str(ledger_id), "--output", "json")[1])
        assert (record["listed"], record["holders"]) == (listed, holders)
        assert words in " ".join(record["reasons"])
        assert words in daybook("ledgers", "why-kept", str(ledger_id))[1]
    code, _, err = daybook("ledgers", "delete", str(held), "--yes")
    assert code == 1
    assert "--force" in err
