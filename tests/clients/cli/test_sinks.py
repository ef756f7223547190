"""`daybook sinks` against a scripted REST."""

import json
from typing import Any

from tests.clients.cli.conftest import Daybook, FakeAdmin

ROOT = "/admin/v2/daybook/sinks"
TOPIC = "persistent://public/default/t-partition-0"


def sink(state: str = "APPLIED", reason: str = "") -> dict[str, Any]:
    return {
        "name": "orders",
        "sinkId": "ab" * 16,
        "queryId": "query",
        "checkpoint": "/checkpoints/orders",
        "state": state,
        "batchId": 7,
        "rows": 12,
        "once": False,
        "partitions": [{"topic": TOPIC, "next": 5, "state": "pending", "reason": reason}],
        "abandoned": [],
        "role": "alice",
    }


def test_sinks_are_listed(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", ROOT] = 200, [sink()]
    code, out, _ = daybook("sinks", "list", "--output", "json")
    assert code == 0
    assert json.loads(out) == [
        {
            "sink": "orders",
            "state": "APPLIED",
            "batch": 7,
            "rows": 12,
            "partitions": 1,
            "query": "query",
            "checkpoint": "/checkpoints/orders",
            "role": "alice",
        }
    ]


def test_a_sink_is_shown_with_its_partitions(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", f"{ROOT}/orders"] = 200, sink("COMMITTED", "the list is full")
    code, out, _ = daybook("sinks", "show", "orders")
    assert code == 0
    assert "COMMITTED" in out
    assert TOPIC in out
    assert "the list is full" in out
    code, out, _ = daybook("sinks", "show", "orders", "--output", "json")
    assert json.loads(out) == sink("COMMITTED", "the list is full")


def test_a_sink_that_is_not_there_is_an_error_in_words(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["GET", f"{ROOT}/orders"] = 404, {"reason": "there is no sink orders"}
    code, _, error = daybook("sinks", "show", "orders")
    assert code != 0
    assert "there is no sink orders" in error


def test_roll_forward_waits_a_little(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["POST", f"{ROOT}/orders/roll-forward?waitS=10"] = 200, sink()
    code, out, _ = daybook("sinks", "roll-forward", "orders")
    assert code == 0
    assert "APPLIED" in out


def test_forget_asks_first(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["POST", f"{ROOT}/orders/forget"] = 204, None
    code, _, error = daybook("sinks", "forget", "orders")
    assert code != 0
    assert "--yes" in error
    assert fake_admin.asked == []
    code, out, _ = daybook("sinks", "forget", "orders", "--yes")
    assert (code, out) == (0, "The sink orders belongs to no query.\n")


def test_move_names_the_new_path(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["POST", f"{ROOT}/orders/move"] = 204, None
    code, _, _ = daybook("sinks", "move", "orders", "--checkpoint", "/new")
    assert code == 0
    assert fake_admin.asked == [("POST", f"{ROOT}/orders/move", {"checkpoint": "/new"})]


def test_resolve_takes_one_decision(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    path = f"{ROOT}/orders/resolve"
    fake_admin.answers["POST", path] = 200, sink()
    for wrong in ([], ["--abandon", "--skip-partition", TOPIC]):
        assert daybook("sinks", "resolve", "orders", "--yes", *wrong)[0] != 0
    assert fake_admin.asked == []
    assert daybook("sinks", "resolve", "orders", "--skip-partition", TOPIC)[0] != 0
    assert fake_admin.asked == []
    daybook("sinks", "resolve", "orders", "--yes", "--skip-partition", TOPIC)
    daybook("sinks", "resolve", "orders", "--yes", "--abandon")
    assert [body for _, _, body in fake_admin.asked] == [
        {"skipPartition": TOPIC},
        {"abandon": True},
    ]
