"""The cursors of a stream's subscription never pass what the stream may read again."""

import socket
from typing import Any, cast

import pytest

from daybook.clients.python import blocking
from daybook.clients.python.errors import BusyError, NotReadyError
from daybook.clients.python.message_id import Offset
from daybook.clients.spark.cursors import Cursors
from daybook.clients.spark.offsets import Partition, Progress, Retained
from daybook.clients.spark.topics import Held

T = "persistent://public/default/t"
T0, T1 = Partition(T, 0), Partition(T, 1)
HELD = Held(
    {T0: Retained(0, 100, 7), T1: Retained(0, 100, 8)},
    {T0: f"{T}-partition-0", T1: f"{T}-partition-1"},
)


class FakeConsumer:
    def __init__(self) -> None:
        self.sought: list[int] = []
        self.fails = False
        self.closed = False

    def seek(self, start: Offset) -> None:
        if self.fails:
            raise NotReadyError(0, "moving")
        self.sought.append(start.value)

    def close(self) -> None:
        self.closed = True


class FakeClient:
    def __init__(self) -> None:
        self.consumers: dict[str, list[FakeConsumer]] = {}
        self.error: Exception | None = None

    def subscribe(self, topic: str, name: str, **options: Any) -> FakeConsumer:
        assert name == "s"
        assert options["receiver_queue_size"] == 0, "the driver receives no messages"
        assert options["initial_position"] == "earliest"
        assert options["subscription_properties"] == {
            "daybook.spark.host": socket.gethostname(),
            "daybook.spark.topics": "orders",
        }
        if self.error is not None:
            raise self.error
        self.consumers.setdefault(topic, []).append(FakeConsumer())
        return self.consumers[topic][-1]

    def sought(self, partition: Partition) -> list[int]:
        return [at for each in self.consumers[HELD.stored_in[partition]] for at in each.sought]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def cursors_of(client: FakeClient) -> Cursors:
    return Cursors(cast("blocking.Client", client), "s", "orders")


def commit(cursors: Cursors, t0: int, t1: int, *, created: int = 7, held: Held = HELD) -> None:
    cursors.commit({T0: Progress(t0, created), T1: Progress(t1, 8)}, held)
    cursors.settle()


def test_a_commit_moves_the_cursors_to_the_end_of_the_batch_before(client: FakeClient) -> None:
    """pulsar-spark 178: the backlog grew, because nothing was acknowledged."""
    cursors = cursors_of(client)
    cursors.open(HELD)
    cursors.begin({T0: 10, T1: 20})
    assert (client.sought(T0), client.sought(T1)) == ([10], [20])
    commit(cursors, 30, 20)
    assert client.sought(T0) == [10], "the batch up to 30 may be read again"
    commit(cursors, 40, 20)
    commit(cursors, 50, 60)
    commit(cursors, 50, 60)
    assert client.sought(T0) == [10, 30, 40, 50]
    assert client.sought(T1) == [20, 60], "a cursor that stays is not moved"


def test_after_a_restart_the_first_commit_moves_nothing(client: FakeClient) -> None:
    cursors = cursors_of(client)
    cursors.open(HELD)
    commit(cursors, 30, 20)
    assert client.sought(T0) == []
    commit(cursors, 40, 20)
    assert client.sought(T0) == [30]


def test_an_offset_of_a_topic_that_is_gone_moves_nothing(client: FakeClient) -> None:
    cursors = cursors_of(client)
    cursors.open(HELD)
    commit(cursors, 30, 20, created=6)
    commit(cursors, 40, 20)
    assert client.sought(T0) == []
    commit(cursors, 50, 20, held=Held({T1: HELD.partitions[T1]}))
    assert client.sought(T0) == []


def test_a_cursor_that_cannot_be_moved_now_is_opened_again(client: FakeClient) -> None:
    cursors = cursors_of(client)
    cursors.open(HELD)
    (first,) = client.consumers[HELD.stored_in[T0]]
    first.fails = True
    commit(cursors, 30, 20)
    commit(cursors, 40, 20)
    assert first.closed
    cursors.open(HELD)
    commit(cursors, 50, 20)
    assert client.sought(T0) == [40]
    cursors.close()


def test_a_broker_that_is_away_ends_no_stream(client: FakeClient) -> None:
    cursors = cursors_of(client)
    client.error = NotReadyError(0, "moving")
    cursors.open(HELD)
    client.error = None
    cursors.open(HELD)
    assert len(client.consumers) == 2


def test_a_subscription_in_use_is_an_error(client: FakeClient) -> None:
    client.error = BusyError(0, "taken")
    with pytest.raises(ValueError, match=f"'s' of {T} partition 0 is in use"):
        cursors_of(client).open(HELD)


def test_an_error_that_nobody_expected_is_logged(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def seek(start: Offset) -> None:
        raise KeyError(start.value)

    cursors = cursors_of(client)
    cursors.open(HELD)
    client.consumers[HELD.stored_in[T0]][-1].seek = seek  # type: ignore[method-assign]
    cursors.begin({T0: 10, T1: 20})
    cursors.close()  # Its threads have ended, and have written what they had to say.
    (record,) = caplog.records
    assert "stays behind" in record.message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    assert client.sought(T1) == [20], "the other cursor has moved"
