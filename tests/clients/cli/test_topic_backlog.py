"""The commands for backlogs and single messages, against a scripted REST."""

import json
from base64 import b64encode
from typing import Any

import pytest

from daybook.wire.batch import encode_batch
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.cli.conftest import Daybook, FakeAdmin

TOPIC = "persistent://public/default/orders"
ROOT = "/admin/v2/persistent/public/default/orders"
SUB = f"{ROOT}/subscription/billing"
EARLIEST = "examinemessage?initialPosition=earliest&messagePosition=1"
LATEST = "examinemessage?initialPosition=latest&messagePosition=1"
LAST = (1 << 63) - 1
AT_MS = 1_763_805_600_000
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


def _stored(
    fake: FakeAdmin,
    path: str,
    messages: list[bytes],
    *,
    first: int,
    place: str,
    pending: int | None = None,
) -> None:
    """Let the REST answer with a batch, as a broker does."""
    singles = [(pb.SingleMessageMetadata(payload_size=len(each)), each) for each in messages]
    headers = {
        "X-Pulsar-Message-ID": place,
        "X-Pulsar-num-batch-message": str(len(messages)),
        "X-Pulsar-Broker-Entry-METADATA-index": str(first + len(messages) - 1),
    }
    if pending is not None:
        headers["X-Daybook-Pending"] = b64encode(bytes([pending])).decode()
    fake.answers["GET", path] = 200, (encode_batch(singles), headers)


@pytest.fixture
def orders(fake_admin: FakeAdmin) -> FakeAdmin:
    """A topic with the offsets 10 to 29 in two batches of ten, at 4:7 and 4:8."""
    batches = [[b"%d" % n for n in range(at, at + 10)] for at in (10, 20)]
    _stored(fake_admin, f"{ROOT}/{EARLIEST}", batches[0], first=10, place="4:7")
    _stored(fake_admin, f"{ROOT}/{LATEST}", batches[1], first=20, place="4:8")
    _stored(fake_admin, f"{ROOT}/ledger/4/entry/7", batches[0], first=10, place="4:7")
    _stored(fake_admin, f"{ROOT}/ledger/4/entry/8", batches[1], first=20, place="4:8")
    _stored(fake_admin, f"{SUB}/position/1", batches[0], first=10, place="4:7", pending=0b11100000)
    _stored(fake_admin, f"{SUB}/position/2", batches[1], first=20, place="4:8")
    answers = fake_admin.answers
    for offset, entry, index in ((10, 7, 0), (17, 7, 7), (28, 8, 8)):
        found = {"ledgerId": 4, "entryId": entry, "partitionIndex": -1, "batchIndex": index}
        answers["GET", f"{ROOT}/getMessageIdByIndex?index={offset}"] = 200, found
    answers["GET", f"{ROOT}/partitions"] = 200, {"partitions": 0}
    answers["GET", f"{ROOT}/stats"] = 200, {"subscriptions": {"billing": {"msgBacklog": 7}}}
    answers["POST", f"{SUB}/analyzeBacklog"] = 200, {**ANALYSIS, "entries": 2}
    answers["POST", f"{SUB}/resetcursor"] = 204, None
    return fake_admin


def _posted(fake: FakeAdmin) -> list[tuple[str, Any]]:
    return [(path, body) for method, path, body in fake.asked if method == "POST"]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("skip", "orders", "billing", "7"), "/skip/7"),
        (("expire", "orders", "billing", "2h"), "/expireMessages/7200"),
        (("clear", "orders", "billing", "--yes"), "/skip_all"),
    ],
)
def test_a_dry_run_asks_for_a_plan_and_changes_nothing(
    daybook: Daybook, orders: FakeAdmin, words: tuple[str, ...], path: str
) -> None:
    orders.answers["POST", f"{SUB}{path}?dryRun=true"] = 200, PLAN
    code, out, _ = daybook("topics", *words, "--dry-run", "--output", "json")
    assert code == 0
    assert json.loads(out)["messages"] == 7
    assert [asked[1] for asked in orders.asked] == [f"{SUB}{path}?dryRun=true"]
    orders.answers["POST", f"{SUB}{path}"] = 204, None
    code, out, _ = daybook("topics", *words, "--output", "json")
    assert (code, json.loads(out)["backlog afterwards (messages)"]) == (0, 7)
    assert _posted(orders)[-1] == (f"{SUB}{path}", None)


def test_a_skip_inside_of_a_batch_does_not_look_like_nothing(
    daybook: Daybook, orders: FakeAdmin
) -> None:
    plan = {"messages": 3, "entries": 0, "bytes": 0, "through": None}
    orders.answers["POST", f"{SUB}/skip/3?dryRun=true"] = 200, plan
    _, out, _ = daybook("topics", "skip", "orders", "billing", "3", "--dry-run")
    assert "only messages inside of a batch" in out


def test_whole_entries_of_several_partitions_do_not_look_like_a_part_of_a_batch(
    daybook: Daybook, orders: FakeAdmin
) -> None:
    plan = {"messages": 200, "entries": 4, "bytes": 2543, "through": None}
    orders.answers["POST", f"{SUB}/skip_all?dryRun=true"] = 200, plan
    _, out, _ = daybook("topics", "clear", "orders", "billing", "--dry-run")
    assert ("200" in out, "inside of a batch" in out) == (True, False)


def test_peek_shows_as_many_messages_as_asked_and_none_that_is_acknowledged(
    daybook: Daybook, orders: FakeAdmin
) -> None:
    _, out, _ = daybook("topics", "peek", "orders", "billing", "-n", "4")
    assert [line.split() for line in out.splitlines()] == [
        ["message", "id", "offset", "key", "data", "properties"],
        ["4:7:-1:5", "15", "-", "15", "-"],
        ["4:7:-1:6", "16", "-", "16", "-"],
        ["4:7:-1:7", "17", "-", "17", "-"],
        ["4:8:-1:0", "20", "-", "20", "-"],
    ]
    _, out, _ = daybook("topics", "peek", "orders", "billing", "--output", "json")
    (entry,) = json.loads(out)["entries"]
    assert [each["id"] for each in entry["messages"]] == ["4:7:-1:5"]


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ((), "29"),
        (("--number", "2"), "28"),
        (("--from", "earliest"), "10"),
        (("--from", "earliest", "--number", "8"), "17"),
        (("17",), "17"),
        (("4:7:-1:3",), "13"),
        (("4:8",), "20"),
    ],
    ids=str,
)
def test_examine_shows_one_message(
    daybook: Daybook, orders: FakeAdmin, words: tuple[str, ...], data: str
) -> None:
    last = {"ledgerId": 4, "entryId": 8, "partitionIndex": -1, "batchIndex": 9}
    orders.answers["GET", f"{ROOT}/getMessageIdByIndex?index=29"] = 200, last
    code, out, err = daybook("topics", "examine", "orders", *words, "--output", "json")
    assert code == 0, err
    (entry,) = json.loads(out)["entries"]
    assert [each["data"] for each in entry["messages"]] == [data]


@pytest.mark.parametrize("age", ["2", "0h", "h", "2 h", "-1h"])
def test_an_age_needs_a_unit(daybook: Daybook, fake_admin: FakeAdmin, age: str) -> None:
    code, _, err = daybook("topics", "expire", "orders", "billing", "--", age)
    assert code == 2
    assert "is not an age" in err
    assert fake_admin.asked == []


@pytest.mark.parametrize(
    ("place", "path", "body", "offset", "afterwards"),
    [
        ("earliest", "/resetcursor", (-1, -1, -1), 10, 20),
        ("latest", "/resetcursor", (LAST, LAST, -1), None, 0),
        ("4:7", "/resetcursor", (4, 7, 0), 10, 20),
        ("4:7:-1:3", "/resetcursor", (4, 7, 3), 13, 17),
        ("17", "/resetcursor", (4, 7, 7), 17, 13),
        ("2025-11-22T10:00Z", f"/resetcursor/{AT_MS}", None, 20, 10),
        ("2025-11-22T10:00", f"/resetcursor/{AT_MS}", None, 20, 10),
    ],
)
def test_a_subscription_is_moved_to_a_place(
    daybook: Daybook,
    orders: FakeAdmin,
    place: str,
    path: str,
    body: tuple[int, int, int] | None,
    offset: int | None,
    afterwards: int,
) -> None:
    at = {"ledgerId": 4, "entryId": 8, "partitionIndex": -1, "batchIndex": -1}
    orders.answers["GET", f"{ROOT}/messageid/{AT_MS}"] = 200, at
    orders.answers["POST", f"{SUB}{path}"] = 204, None
    words = ("topics", "reset", "orders", "billing", place, "--output", "json")
    code, out, err = daybook(*words, "--dry-run")
    assert (code, _posted(orders)) == (0, []), err
    planned = json.loads(out)
    assert planned.pop("dry run") is True
    moved = {"subscriptions": {"billing": {"msgBacklog": 5}}}
    stats = [orders.answers["GET", f"{ROOT}/stats"], (200, moved)]
    orders.in_turn["GET", f"{ROOT}/stats"] = stats
    code, out, _ = daybook(*words)
    done = {**planned, "backlog afterwards (messages)": 5}
    assert (code, json.loads(out)) == (0, done), "the broker says what it is"
    assert planned["its offset"] == offset
    assert planned["backlog before (messages)"] == 7
    assert planned["backlog afterwards (messages)"] == afterwards
    ((asked, sent),) = _posted(orders)
    assert asked == f"{SUB}{path}"
    assert body == (sent and (sent["ledgerId"], sent["entryId"], sent["batchIndex"]))


@pytest.mark.parametrize(
    ("place", "code", "error"),
    [
        ("9999:0", 1, "has no entry 9999:0"),
        ("4:7:-1:10", 1, "that batch has the indexes 0 to 9"),
        ("4:7:3", 1, "is a message of partition 3"),
        ("500", 1, "has no offset 500: it holds 10 to 29"),
        ("2999-01-01T00:00Z", 2, "is in the future"),
        ("yesterday", 2, "is no place"),
        ("4:-7", 2, "is no place"),
        ("9" * 30, 2, "is no place"),
    ],
)
def test_a_place_that_is_none_is_refused(
    daybook: Daybook, orders: FakeAdmin, place: str, code: int, error: str
) -> None:
    gone = {"reason": f"{TOPIC} has no entry 9999:0"}
    orders.answers["GET", f"{ROOT}/ledger/9999/entry/0"] = 404, gone
    beyond = {"reason": f"{TOPIC} has no offset 500: it holds 10 to 29"}
    orders.answers["GET", f"{ROOT}/getMessageIdByIndex?index=500"] = 404, beyond
    for more in ((), ("--dry-run",)):
        found, _, err = daybook("topics", "reset", "orders", "billing", *more, place)
        assert (found, _posted(orders)) == (code, [])
        assert error in " ".join(err.split())


def test_a_time_at_which_nothing_was_published_yet_is_the_end(
    daybook: Daybook, orders: FakeAdmin
) -> None:
    at = {"ledgerId": 4, "entryId": 9, "partitionIndex": -1, "batchIndex": -1}
    orders.answers["GET", f"{ROOT}/messageid/{AT_MS}"] = 200, at
    _, out, _ = daybook("topics", "reset", "orders", "billing", "2025-11-22T10:00Z", "--dry-run")
    assert "none is stored yet" in out


def test_partitions_are_moved_together_or_one_by_name(daybook: Daybook, orders: FakeAdmin) -> None:
    answers = orders.answers
    answers["GET", f"{ROOT}/partitions"] = 200, {"partitions": 2}
    answers["GET", f"{ROOT}/partitioned-stats?perPartition=true"] = answers["GET", f"{ROOT}/stats"]
    for index in (0, 1):
        part = f"{ROOT}-partition-{index}"
        _stored(orders, f"{part}/{EARLIEST}", [b"a", b"b"], first=index, place=f"{index}:0")
        _stored(orders, f"{part}/{LATEST}", [b"a", b"b"], first=index, place=f"{index}:0")
        _stored(orders, f"{part}/ledger/{index}/entry/0", [b"a", b"b"], first=0, place=f"{index}:0")
        answers["POST", f"{part}/subscription/billing/resetcursor"] = 204, None
    words = ("topics", "reset", "orders", "billing")
    _, out, _ = daybook(*words, "earliest", "--dry-run", "--output", "json")
    assert json.loads(out)["backlog afterwards (messages)"] == 4
    assert daybook(*words, "earliest")[0] == 0
    assert _posted(orders)[-1][0] == f"{SUB}/resetcursor"
    assert daybook(*words, "1:0:1:1")[0] == 0
    path, sent = _posted(orders)[-1]
    assert path == f"{ROOT}-partition-1/subscription/billing/resetcursor"
    assert (sent["ledgerId"], sent["batchIndex"], sent["partitionIndex"]) == (1, 1, 1)
    for place in ("17", "1:0"):
        code, _, err = daybook(*words, place)
        assert code == 1
        assert "orders-partition-0" in err


def test_the_backlog_is_analyzed_for_people(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["POST", f"{SUB}/analyzeBacklog"] = 200, ANALYSIS
    code, out, _ = daybook("topics", "analyze", "orders", "billing")
    assert code == 0
    assert "4:7" in out
    assert "2025-11-24T16:00:00+00:00" in out
    code, out, _ = daybook("topics", "analyze", "orders", "billing", "--output", "json")
    assert json.loads(out) == ANALYSIS


def test_the_analysis_of_partitions_says_since_when(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    """The column was missing before, though the help names it."""
    refused = 405, {"reason": "orders is partitioned: name one of its partitions"}
    fake_admin.answers["POST", f"{SUB}/analyzeBacklog"] = refused
    fake_admin.answers["GET", f"{ROOT}/partitions"] = 200, {"partitions": 2}
    for number, oldest in ((0, 1_764_000_000_000), (1, None)):
        path = f"{ROOT}-partition-{number}/subscription/billing/analyzeBacklog"
        fake_admin.answers["POST", path] = 200, {**ANALYSIS, "oldestPublishTime": oldest}
    code, out, _ = daybook("topics", "analyze", "orders", "billing")
    assert code == 0
    assert "published (the first)" in out.splitlines()[0]
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["2025-11-24T16:00:00+00:00", "-"]


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
