"""The blocking client under misuse, and calls that meet its end."""

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import pytest
import trio

from daybook.clients import ledgers
from daybook.clients.ledgers import Limits, blocking_writer
from daybook.clients.ledgers.blocking import Client, serve
from daybook.clients.python.portal import Portal
from tests.clients.ledgers.world import client_of_its_own

T = TypeVar("T")
NARROW = Limits(pending_bytes_max=2000, pending_entries_max=2)
PATIENCE_S = 10.0


def narrow_client() -> Client:
    return serve(lambda: client_of_its_own(NARROW), NARROW)


@pytest.fixture
def client() -> Iterator[Client]:
    client = narrow_client()
    yield client
    assert Call(client.close).ended() is None


class Call(threading.Thread):
    """A call in a thread of its own, so that a failing test does not hang."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call()
        except Exception as error:
            self.outcome = error

    def ended(self) -> object:
        """Return the call's value, or its error."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it waits for ever"
        return self.outcome


async def never(data: bytes) -> int:
    await trio.sleep_forever()


# -- callbacks of futures


def test_a_callback_may_append_again_when_the_writer_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback also runs for entries that were never sent, while others wait for its lock."""
    writer = client.create()
    refused: list[ledgers.LedgerError] = []

    def again(failed: "Future[int]") -> None:
        try:
            writer.append_soon(b"again")
        except ledgers.LedgerError as error:
            refused.append(error)

    monkeypatch.setattr(writer._writer, "append_soon", never)
    futures = [writer.append_soon(b"x") for _ in range(2)]
    for future in futures:
        future.add_done_callback(again)
    assert Call(writer.abandon).ended() is None
    assert all(isinstance(f.exception(PATIENCE_S), ledgers.LedgerClosedError) for f in futures)
    assert isinstance(Call(lambda: writer.append_soon(b"y")).ended(), ledgers.LedgerClosedError)
    assert [type(error) for error in refused] == [ledgers.LedgerClosedError] * 2


def test_a_callback_that_appends_does_not_wait_for_room(client: Client) -> None:
    """The callback's own thread makes the room that it would wait for."""
    writer = client.create()
    left = [50]

    def more(done: "Future[int]") -> None:
        for _ in range(min(5, left[0])):
            left[0] -= 1
            writer.append_soon(b"x").add_done_callback(more)

    writer.append_soon(b"x").add_done_callback(more)
    for _ in range(100):
        assert Call(writer.flush).ended() is None
    assert (left, writer.last_add_confirmed) == ([0], 50)


@pytest.mark.parametrize("what", ["flush", "close"])
def test_a_callback_that_waits_is_told(client: Client, what: str) -> None:
    writer = client.create()
    told: Future[object] = Future()

    def wait(done: "Future[int]") -> None:
        try:
            told.set_result((writer.flush if what == "flush" else client.close)())
        except RuntimeError as error:
            told.set_result(error)

    writer.append_soon(b"x").add_done_callback(wait)
    assert "may wait" in str(told.result(PATIENCE_S))
    assert writer.append(b"y", PATIENCE_S) == 1


# -- reports about an entry


def test_the_time_to_append_includes_the_wait_for_room(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = client.create()
    monkeypatch.setattr(writer._writer, "append_soon", never)
    for _ in range(6):
        assert isinstance(Call(lambda: writer.append(b"x", 0.05)).ended(), TimeoutError)
    assert len(writer._handed) <= NARROW.pending_entries_max + 1


def test_what_an_append_raises_is_about_an_entry_that_was_not_sent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the client ends the wait for room.  Then the entry must not be under way."""
    writer = client.create()
    sent: list[bytes] = []
    waiting = trio.Event()

    async def append_soon(data: bytes) -> int:
        if data == b"last":
            waiting.set()
            await trio.sleep_forever()
        sent.append(data)
        return len(sent) - 1

    monkeypatch.setattr(writer._writer, "append_soon", append_soon)
    monkeypatch.setattr(writer._writer, "wait_confirmed", never)
    may_go_on = threading.Event()

    def hold() -> None:
        may_go_on.wait(PATIENCE_S)

    client._portal.soon(hold)
    for number in range(NARROW.pending_entries_max):
        writer.append_soon(b"%d" % number)
    full = Call(lambda: writer.append_soon(b"full"))
    full.join(0.2)  # The call may have to wait.
    last = Call(lambda: writer.append_soon(b"last"))
    last.join(0.2)
    may_go_on.set()
    client._portal.call(waiting.wait)
    client.close()
    assert sent[-1] == b"full"
    assert not isinstance(full.ended(), ledgers.LedgerClosedError)
    assert isinstance(last.ended(), ledgers.LedgerClosedError | Future)


# -- iterators


def test_a_tail_that_was_given_up_goes_on_and_has_no_false_end(client: Client) -> None:
    writer = client.create()
    writer.append(b"one")
    tail = client.open(writer.ledger_id, recover=False).tail(timeout_s=0.2)
    assert next(tail).data == b"one"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            next(tail)
    writer.append(b"two")
    writer.close()
    assert [entry.data for entry in tail] == [b"two"]
    assert list(tail) == []


def test_an_interrupted_read_loses_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes between the fetch and the caller's receipt."""
    with client.create() as writer:
        for number in range(10):
            writer.append_soon(b"%d" % number)
    entries = client.open(writer.ledger_id, recover=False).read()
    call = Portal.call

    def interrupted(self: Portal, *function: Callable[..., object]) -> None:
        call(self, *function)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Portal, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(entries)
    assert [entry.data for entry in entries] == [b"%d" % number for number in range(10)]


def test_threads_share_an_iterator_and_each_entry_is_given_once(client: Client) -> None:
    with client.create() as writer:
        for number in range(500):
            writer.append_soon(b"%d" % number)
    reader = client.open(writer.ledger_id, recover=False)
    entries = reader.tail()
    shares = [Call(lambda: [entry.entry_id for entry in entries]) for _ in range(4)]
    taken: list[int] = []
    for share in shares:
        part = share.ended()
        assert isinstance(part, list)
        taken += part
    assert sorted(taken) == list(range(500))


# -- the end of the client


def test_each_future_has_one_result_when_the_client_is_closed_behind_its_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some entries are sent and not confirmed, others wait for room."""
    client = narrow_client()
    writer = client.create()
    monkeypatch.setattr(writer._writer, "wait_confirmed", never)
    told: list[object] = []
    futures = [writer.append_soon(b"%d" % number) for number in range(2)]
    for future in futures:
        future.add_done_callback(told.append)

    def use() -> None:
        with client:
            raise ZeroDivisionError

    assert isinstance(Call(use).ended(), ZeroDivisionError)
    assert sorted(map(id, told)) == sorted(map(id, futures))
    assert all(future.exception(0) is not None or future.result(0) >= 0 for future in futures)


def test_an_error_in_the_block_of_a_writer_whose_client_was_closed_comes_out() -> None:
    client = narrow_client()

    def use() -> None:
        with client.create():
            client.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()


def test_a_writer_that_is_made_while_the_client_is_closed_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = narrow_client()
    call_within = blocking_writer.call_within

    def closed_behind(portal: Portal, work: Callable[[], Awaitable[T]]) -> T:
        made = call_within(portal, work)
        portal.close()
        return made

    monkeypatch.setattr("daybook.clients.ledgers.blocking.call_within", closed_behind)
    writer = client.create()
    assert isinstance(Call(lambda: writer.append_soon(b"x")).ended(), ledgers.LedgerClosedError)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_and_the_other_one_goes_on(client: Client) -> None:
    writer = client.create()
    child = os.fork()
    if not child:
        signal.alarm(round(PATIENCE_S))  # ends the process
        told = 0
        for use in (client.create, lambda: writer.append_soon(b"x"), writer.flush):
            try:
                use()
            except ledgers.LedgerClosedError:
                told += 1
        client.close()
        os._exit(0 if told == 3 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert writer.append(b"of the parent", PATIENCE_S) == 0


def test_a_call_that_the_end_cut_short_may_have_taken_effect() -> None:
    """The end itself was interrupted, so that its progress is not known."""
    portal, begun = blocking_writer.new_portal(), threading.Event()

    async def change() -> None:
        begun.set()
        await trio.sleep_forever()

    call = Call(lambda: blocking_writer.call_within(portal, change))
    assert begun.wait(PATIENCE_S)
    portal.close()
    error = call.ended()
    assert isinstance(error, ledgers.CutShortError)
    assert error.outcome is ledgers.Outcome.UNKNOWN
    later = Call(lambda: blocking_writer.call_within(portal, change)).ended()
    assert isinstance(later, ledgers.LedgerClosedError)
    assert later.outcome is ledgers.Outcome.NOT_APPLIED
