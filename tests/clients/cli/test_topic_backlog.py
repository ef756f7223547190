"""The commands for backlogs and single messages, against a scripted REST."""

import json
from typing import Any

import pytest

from tests.clients.cli.conftest import Daybook, FakeAdmin

ROOT = "/admin/v2/persistent/public/default/orders"
SUB = f"{ROOT}/subscription/billing"
PLAN = {"messages": 7, "entries": 3, "bytes": 900, "through": "4:9"}
ANALYSIS: dict[str, Any] = {
    "messages": 7,
    "entries": 3,
    "bytes": 900,
    "exact": True,
    "firstMessageId": "4:7",
    "lastMessageId": "4:9",
    "oldestPublishTime": 1_764_000_000_000,
}


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("skip", "orders", "billing", "7"), "/skip/7"),
        (("expire", "orders", "billing", "2h"), "/expireMessages/7200"),
        (("clear", "orders", "billing", "--yes"), "/skip_all"),
    ],
)
def test_a_dry_run_asks_for_a_plan_and_changes_nothing(
    daybook: Daybook, fake_admin: FakeAdmin, words: tuple[str, ...], path: str
) -> None:
    fake_admin.answers["POST", f"{SUB}{path}?dryRun=true"] = 200, PLAN
    code, out, _ = daybook("topics", *words, "--dry-run", "--output", "json")
    assert code == 0
    assert json.loads(out)["messages"] == 7
    assert [asked[1] for asked in fake_admin.asked] == [f"{SUB}{path}?dryRun=true"]
    fake_admin.answers["POST", f"{SUB}{path}"] = 204, None
    assert daybook("topics", *words)[0] == 0
    assert fake_admin.asked[-1][1] == f"{SUB}{path}"


@pytest.mark.parametrize("age", ["2", "0h", "h", "2 h", "-1h"])
def test_an_age_needs_a_unit(daybook: Daybook, fake_admin: FakeAdmin, age: str) -> None:
    code, _, err = daybook("topics", "expire", "orders", "billing", "--", age)
    assert code == 2
    assert "is not an age" in err
    assert fake_admin.asked == []


@pytest.mark.parametrize(
    ("place", "path", "body"),
    [
        ("earliest", "/resetcursor", -1),
        ("12:34", "/resetcursor", 12),
        ("2026-11-22T10:00Z", "/resetcursor/1795341600000", None),
        ("2026-11-22T10:00", "/resetcursor/1795341600000", None),
    ],
)
def test_a_subscription_is_moved_to_a_place(
    daybook: Daybook, fake_admin: FakeAdmin, place: str, path: str, body: int | None
) -> None:
    fake_admin.answers["POST", f"{SUB}{path}"] = 204, None
    assert daybook("topics", "reset", "orders", "billing", place)[0] == 0
    (asked,) = fake_admin.asked
    assert asked[1] == f"{SUB}{path}"
    assert (None if asked[2] is None else asked[2]["ledgerId"]) == body


def test_a_place_that_is_none_is_refused(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    code, _, err = daybook("topics", "reset", "orders", "billing", "yesterday")
    assert code == 2
    assert "is no place" in err
    fake_admin.answers["POST", f"{SUB}/analyzeBacklog"] = 200, ANALYSIS
    code, out, _ = daybook("topics", "reset", "orders", "billing", "2h", "--dry-run")
    assert code == 0
    assert "7" in out


def test_the_backlog_is_analyzed_for_people(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["POST", f"{SUB}/analyzeBacklog"] = 200, ANALYSIS
    code, out, _ = daybook("topics", "analyze", "orders", "billing")
    assert code == 0
    assert "4:7" in out
    assert "2025-11-24T16:00:00+00:00" in out
    code, out, _ = daybook("topics", "analyze", "orders", "billing", "--output", "json")
    assert json.loads(out) == ANALYSIS


def test_a_topic_is_truncated_only_with_yes(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    stats = {"storageSize": 100, "subscriptions": {"a": {"msgBacklog": 3}}}
    fake_admin.answers["GET", f"{ROOT}/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{ROOT}/stats"] = 200, stats
    code, out, _ = daybook("topics", "truncate", "orders", "--dry-run", "--output", "json")
    assert (code, json.loads(out)["stored bytes"]) == (0, 100)
    assert all(asked[0] == "GET" for asked in fake_admin.asked)
    fake_admin.answers["DELETE", f"{ROOT}/truncate"] = 204, None
    assert daybook("topics", "truncate", "orders", "--yes")[0] == 0
    assert fake_admin.asked[-1][0] == "DELETE"
