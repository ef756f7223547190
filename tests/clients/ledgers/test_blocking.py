"""The blocking client behaves like the trio client, from ordinary threads."""

import threading
import time
from collections.abc import Iterator

import pytest
import trio

from daybook.clients import ledgers
from daybook.clients.ledgers import Limits
from daybook.clients.ledgers.blocking import Client, serve
from tests.clients.ledgers.world import client_of_its_own


@pytest.fixture
def client() -> Iterator[Client]:
    with serve(client_of_its_own, Limits()) as client:
        yield client


def test_there_and_back(client: Client) -> None:
    with client.create(digest="hmac", password=b"pw", custom={"k": b"v"}) as writer:
        assert writer.append(b"0") == 0
        futures = [writer.append_soon(b"%d" % number) for number in range(1, 1000)]
        writer.flush(timeout_s=30)
        assert [future.result(0) for future in futures] == list(range(1, 1000))
        assert (writer.last_add_confirmed, writer.waiting_for, writer.error) == (999, "", None)
    assert writer.metadata.closed
    reader = client.open(writer.ledger_id, recover=False, password=b"pw")
    assert (reader.closed, reader.last_add_confirmed) == (True, 999)
    assert reader.length == writer.length == sum(len(b"%d" % n) for n in range(1000))
    entries = list(reader.read())
    assert [entry.data for entry in entries] == [b"%d" % number for number in range(1000)]
    assert [entry.entry_id for entry in reader.read(5, 7)] == [5, 6, 7]
    assert [entry.entry_id for entry in reader.tail(998)] == [998, 999]
    assert client.metadata(writer.ledger_id).custom == {"k": b"v"}
    assert list(client.list_ledgers()) == [writer.ledger_id]
    client.delete(writer.ledger_id)
    assert list(client.list_ledgers()) == []
    with pytest.raises(ledgers.NoSuchLedgerError):
        client.open(writer.ledger_id, recover=True)


def test_one_thread_follows_what_another_appends(client: Client) -> None:
    writer = client.create()
    reader = client.open(writer.ledger_id, recover=False)
    seen: list[bytes] = []

    def follow() -> None:
        seen.extend(entry.data for entry in reader.tail(timeout_s=60))

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(20):
        writer.append(b"%d" % number)
    writer.close()
    thread.join()
    assert seen == [b"%d" % number for number in range(20)]


def test_waiting_ends_when_the_time_is_over_and_can_be_gone_on_with(client: Client) -> None:
    writer = client.create()
    writer.append(b"one")
    reader = client.open(writer.ledger_id, recover=False)
    tail = reader.tail(timeout_s=1.0)
    assert next(tail).data == b"one"
    with pytest.raises(TimeoutError, match="was not done within 1 s"):
        next(tail)
    assert reader.read_last_add_confirmed() == 0
    writer.append(b"two")
    assert next(reader.tail(1)).data == b"two"


def test_a_writer_that_was_fenced_tells_each_future_and_the_next_flush(client: Client) -> None:
    writer = client.create()
    writer.append(b"kept")
    reader = client.open(writer.ledger_id, recover=True)
    assert [entry.data for entry in reader.read()] == [b"kept"]
    first = writer.append_soon(b"late")
    assert isinstance(first.exception(30), ledgers.InDoubtError)
    second = writer.append_soon(b"later")
    assert isinstance(second.exception(30), ledgers.LedgerFencedError)
    with pytest.raises(ledgers.InDoubtError):
        writer.flush()
    with pytest.raises(ledgers.LedgerFencedError):
        writer.close()


def test_an_error_in_the_block_leaves_the_ledger_for_recovery(client: Client) -> None:
    writer = client.create()
    writer.append(b"kept")
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    assert client.metadata(writer.ledger_id).state is ledgers.LedgerState.OPEN
    assert [e.data for e in client.open(writer.ledger_id, recover=True).read()] == [b"kept"]


def test_ids_of_the_callers(client: Client) -> None:
    with client.create_advanced(ledger_id=77) as writer:
        assert writer.ledger_id == 77
        writer.append_soon(1, b"1")
        assert writer.held_entries == 1
        with pytest.raises(TimeoutError):
            writer.append(2, b"2", timeout_s=0.2)
        writer.append(0, b"0")
        writer.wait_confirmed(2)
        with pytest.raises(ledgers.DuplicateEntryError):
            writer.append(2, b"again")
    entries = client.open(77, recover=False).read()
    assert [entry.data for entry in entries] == [b"0", b"1", b"2"]


def test_more_than_fits_waits_and_is_not_lost() -> None:
    limits = Limits(pending_bytes_max=2000, pending_entries_max=10)
    with serve(lambda: client_of_its_own(limits), limits) as client:
        with client.create() as writer:
            futures = [writer.append_soon(b"%100d" % number) for number in range(300)]
            assert len(writer._handed) <= 11
        assert [future.result(0) for future in futures] == list(range(300))


def test_nobody_waits_for_a_client_that_was_closed() -> None:
    client = serve(client_of_its_own, Limits())
    writer = client.create()
    futures = [writer.append_soon(b"x") for _ in range(100)]
    reader = client.open(writer.ledger_id, recover=False)
    tail = reader.tail(1000)
    client.close()
    client.close()
    for future in futures:
        error = future.exception(1)
        assert error is None or isinstance(error, ledgers.InDoubtError | ledgers.LedgerClosedError)
    with pytest.raises(ledgers.LedgerClosedError):
        writer.append_soon(b"y")
    with pytest.raises(ledgers.LedgerClosedError):
        next(tail)
    with pytest.raises(ledgers.LedgerClosedError):
        client.create()


def test_nobody_waits_for_a_writer_that_never_took_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait(data: bytes) -> int:
        await trio.sleep_forever()

    client = serve(client_of_its_own, Limits())
    writer = client.create()
    monkeypatch.setattr(writer._writer, "append_soon", wait)
    futures = [writer.append_soon(b"x") for _ in range(3)]
    client.close()
    errors = [type(future.exception(1)) for future in futures]
    assert errors == [ledgers.LedgerClosedError] * 3


def test_a_writer_that_hears_late_of_its_end_tells_nobody_twice(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), trio.Event()

    async def wait(data: bytes) -> int:
        begun.set()
        await ended.wait()
        raise ledgers.LedgerClosedError("it was given up")

    writer = client.create()
    monkeypatch.setattr(writer._writer, "append_soon", wait)
    futures = [writer.append_soon(b"x") for _ in range(3)]
    assert begun.wait(30)
    writer.abandon()
    assert all(isinstance(future.exception(30), ledgers.LedgerError) for future in futures)
    client._portal.soon(ended.set)
    with client.create() as another:
        assert another.append(b"y") == 0


@pytest.mark.parametrize("how", ["close", "abandon", "fenced"])
def test_a_writer_that_has_ended_leaves_nothing_running(client: Client, how: str) -> None:
    """Programs that create a ledger each minute run for months."""
    # Tasks that are started once stay; the writer's own tasks may be ending still.
    client.create().close()
    before = len(client._portal._nursery.child_tasks)
    for _ in range(3):
        writer = client.create()
        futures = [writer.append_soon(b"x") for _ in range(5)]
        match how:
            case "close":
                writer.close()
                assert [future.result(0) for future in futures] == list(range(5))
            case "abandon":
                writer.abandon()
            case _:
                client.open(writer.ledger_id, recover=True)
                writer.append_soon(b"y").exception(30)
                with pytest.raises(ledgers.LedgerError):
                    writer.close()
        assert all(future.exception(30) is None for future in futures) or how != "close"
        with pytest.raises(ledgers.LedgerError, match=f"{writer.ledger_id}"):
            writer.append(b"late", 30)
    deadline = time.monotonic() + 30
    while len(client._portal._nursery.child_tasks) > before and time.monotonic() < deadline:
        client.metadata(writer.ledger_id)  # gives the tasks a turn to end
    assert len(client._portal._nursery.child_tasks) <= before


def test_what_cannot_be_connected_to_raises() -> None:
    with pytest.raises(ValueError, match="scheme"):
        ledgers.blocking.connect("localhost:2181")
    with pytest.raises(ledgers.MetadataUnavailableError) as caught:
        ledgers.blocking.connect("zk://127.0.0.1:1/ledgers", connect_timeout_s=0.3)
    assert caught.value.remedy is ledgers.Remedy.RETRY
