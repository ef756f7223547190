"""The table of client operations in `docs/interop.md` names what exists, and all of it."""

import inspect
import re

import pulsar
import pytest

from tests.interop import operations_table
from tests.interop.operations_table import (
    CLIENTS,
    Row,
    go_names,
    java_names,
    python_names,
    rows,
)

NAMES = {"Python": python_names(), "Java": java_names(), "Go": go_names()}
ROWS = list(rows())
EXISTING = operations_table.test_names()


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operation)
def test_each_cell_names_what_exists(row: Row) -> None:
    assert len(row.cells) == len(CLIENTS)
    for client, cell in zip(CLIENTS, row.cells, strict=True):
        if cell == "yes":
            assert plain(row.operation) in map(plain, NAMES[client]), client
        elif found := re.fullmatch(r"`(test_\w+)`", cell):
            assert found[1] in EXISTING, cell
        else:
            assert cell.startswith(("not offered", "no: ")), (client, cell)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_operation_has_a_row(client: str) -> None:
    index = CLIENTS.index(client)
    passed = {plain(row.operation) for row in ROWS if row.cells[index] == "yes"}
    assert passed == set(map(plain, NAMES[client]))


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 60


# A word that some name in Python's client would have if it offered the operation.
WORDS = {
    "producer statistics": "get_stats",
    "schemas of numbers": "int64schema",
    "schemas of pairs, auto-consume, auto-produce": "keyvalue",
    "failover, and who is active": "event_listener",
    "watcher of a pattern": "watch",
    "subscription without a cursor": "durable",
    "subscription properties": "subscription_properties",
    "unsubscribe by force": "force",
    "consumer statistics": "get_broker_consumer_stats",
    "interceptors": "intercept",
    "acknowledgement with receipt": "receipt",
    "transactions are refused": "new_transaction",
    "retries": "reconsume",
    "seek by function": "seek_by",
    "reader of several topics": "create_multi",
    "reader from a time on": "rollback",
    "admin client": "admin",
}


def names_of_python() -> set[str]:
    """Return the names of the classes, their methods and their options."""
    found = {name for name in [*dir(pulsar), *dir(pulsar.schema)] if name[0].isupper()}
    for kind in (pulsar.Client, pulsar.Producer, pulsar.Consumer, pulsar.Reader, pulsar.TableView):
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                found |= {name, *inspect.signature(member).parameters}
    return {name.lower() for name in found}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operation)
def test_python_does_not_offer_what_the_table_says_it_does_not(row: Row) -> None:
    if row.cells[0] == "not offered":
        word = WORDS[row.operation]
        assert [name for name in names_of_python() if word in name] == []
