"""A worker process has one client for each address, makes its own, and replaces one that failed."""

import os
from typing import Any

import pytest

from daybook.bookie.errors import LedgerError
from daybook.clients import ledgers
from daybook.clients.python import blocking
from daybook.clients.spark import worker
from daybook.clients.spark.credential_options import QueryCredentials


class FakeClient:
    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self.process = os.getpid()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    """Have fake clients made in a process that has none yet."""
    found: list[FakeClient] = []

    def connect(url: str, token: str | None = None, **_: Any) -> FakeClient:
        found.append(FakeClient(url, token))
        return found[-1]

    monkeypatch.setattr(worker, "_kept", worker._Kept())
    monkeypatch.setattr(blocking, "connect", connect)
    monkeypatch.setattr(ledgers.blocking, "connect", connect)
    return found


def test_tasks_of_a_process_share_a_client(made: list[FakeClient]) -> None:
    first = worker.client_of("pulsar://a", 60)
    assert worker.client_of("pulsar://a", 60) is first
    assert worker.client_of("pulsar://b", 60) is not first
    ledgers_client: object = worker.ledgers_of("pulsar://a")
    assert ledgers_client is not first
    assert [each.url for each in made] == ["pulsar://a", "pulsar://b", "pulsar://a"]


def test_queries_with_other_credentials_have_other_clients(made: list[FakeClient]) -> None:
    """A client of one role must not read for the query of another one."""
    ann, ben = (QueryCredentials(f"file:///run/{name}") for name in ("ann", "ben"))
    of_ann = worker.client_of("pulsar://a", 60, None, ann)
    assert worker.client_of("pulsar://a", 60, None, ann) is of_ann
    assert worker.client_of("pulsar://a", 60, None, ben) is not of_ann
    assert worker.client_of("pulsar://a", 60) is not of_ann
    assert [each.token for each in made] == ["file:///run/ann", "file:///run/ben", None]


def test_a_client_that_failed_is_closed_and_replaced(made: list[FakeClient]) -> None:
    first = worker.client_of("pulsar://a", 60)
    worker.discard(first)
    assert made[0].closed == 1
    second = worker.client_of("pulsar://a", 60)
    assert second is not first
    worker.discard(first)  # by a task that held it longer
    assert worker.client_of("pulsar://a", 60) is second


def test_a_process_that_was_forked_makes_its_own_and_leaves_those_of_its_parent_alone(
    made: list[FakeClient],
) -> None:
    first = worker.client_of("pulsar://a", 60)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # The child only reports, and ends without the clean-up of the tests.
        try:
            own: Any = worker.client_of("pulsar://a", 60)
            worker._close_all()
            fine = own is not first and own.process == os.getpid() and own.closed == 1
            os.write(writing, b"y" if fine and made[0].closed == 0 else b"n")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.close(writing)
    assert worker.client_of("pulsar://a", 60) is first


def test_all_clients_are_closed_at_the_end(made: list[FakeClient]) -> None:
    worker.client_of("pulsar://a", 60)
    worker.ledgers_of("zk://a/ledgers")
    worker._close_all()
    assert [each.closed for each in made] == [1, 1]


def test_ledgers_that_are_out_of_reach_are_left_alone_for_a_while_with_one_warning(
    made: list[FakeClient], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    monkeypatch.setattr(worker, "monotonic", lambda: now_s)
    assert not worker.are_away("zk://a/ledgers")
    for _ in range(2):
        worker.note_away("zk://a/ledgers", LedgerError("it has TLS (zookeeper_tls)"))
    assert worker.are_away("zk://a/ledgers")
    assert not worker.are_away("zk://b/ledgers")
    (record,) = caplog.records
    assert "set read=brokers" in record.getMessage()
    assert "(it has TLS (zookeeper.tls))" in record.getMessage()
    assert "zookeeper.tls with tls.trusted" in record.getMessage()
    now_s += 61
    assert not worker.are_away("zk://a/ledgers")
