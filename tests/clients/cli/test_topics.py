"""`daybook topics` against a scripted REST."""

import json
import re

import pytest

from daybook import blocking
from tests.clients.cli.conftest import Daybook, FakeAdmin
from tests.clients.python.fake_broker import FakeCluster

ROOT = "/admin/v2/persistent/public/default"
NAME = "persistent://public/default/orders"


def test_create_makes_a_topic_with_or_without_partitions(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["PUT", f"{ROOT}/orders"] = 204, None
    fake_admin.answers["PUT", f"{ROOT}/orders/partitions"] = 204, None
    code, out, _ = daybook("topics", "create", "orders")
    assert (code, out.split()) == (0, ["topic", NAME, "partitions", "-"])
    code, out, _ = daybook("topics", "create", "orders", "--partitions", "4", "--output", "json")
    assert (code, json.loads(out)) == (0, {"topic": NAME, "partitions": 4})
    assert [asked[2] for asked in fake_admin.asked] == [None, 4]


def test_what_exists_already_is_said_in_one_sentence(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["PUT", f"{ROOT}/orders"] = 409, {"reason": "the topic exists already"}
    code, out, err = daybook("topics", "create", "orders")
    assert (code, out, err) == (1, "", "Error: the topic exists already (HTTP 409).\n")


def test_a_request_that_did_not_begin_is_not_in_doubt(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    reason = "this broker has no contact with the metadata store, so it cannot look up topics"
    fake_admin.answers["PUT", f"{ROOT}/orders"] = 503, {"reason": reason, "applied": False}
    code, _, err = daybook("topics", "create", "orders")
    assert (code, "The request was not carried out." in err) == (1, True)
    assert "may have been" not in err
    fake_admin.answers["PUT", f"{ROOT}/orders"] = 503, {"reason": "it may not have been created"}
    assert "may have been carried out" in daybook("topics", "create", "orders")[2]


def test_list_counts_partitions(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    names = [NAME, *(f"persistent://public/default/p-partition-{n}" for n in range(3))]
    fake_admin.answers["GET", ROOT] = 200, names
    code, out, _ = daybook("topics", "list", "--output", "json")
    assert code == 0
    assert json.loads(out) == [
        {"topic": NAME, "partitions": 0},
        {"topic": "persistent://public/default/p", "partitions": 3},
    ]
    _, out, _ = daybook("topics", "list")
    assert out.splitlines()[0].split() == ["topic", "partitions"]
    assert len(out.splitlines()) == 3


def test_stats_are_summed_up_for_people(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    stats = {
        "msgRateIn": 1234.5,
        "msgInCounter": 10,
        "publishers": [{}],
        "subscriptions": {"s": {"type": "Shared", "msgBacklog": 3, "consumers": [{}, {}]}},
    }
    fake_admin.answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{ROOT}/orders/stats"] = 200, stats
    assert json.loads(daybook("topics", "stats", "orders", "--output", "json")[1]) == stats
    code, out, _ = daybook("topics", "stats", "orders")
    assert code == 0
    assert re.search(r"^messages/s in +1,234\.5$", out, re.MULTILINE)
    assert out.splitlines()[-1].split() == ["s", "Shared", "2", "3", "-"]
    assert "backlog (messages)" in out.splitlines()[-2]
    estimated = {"type": "Shared", "msgBacklog": 3, "backlogExact": False}
    fake_admin.answers["GET", f"{ROOT}/orders/stats"] = 200, {"subscriptions": {"s": estimated}}
    assert daybook("topics", "stats", "orders")[1].split()[-2:] == ["~3", "-"]


def fields(out: str) -> dict[str, str]:
    """The record in front of the tables, by the names of its fields."""
    lines = out.partition("\n\n")[0].splitlines()
    found: dict[str, str] = {}
    for line in lines:
        name, value = re.split(" {2,}", line, maxsplit=1)
        found[name] = value
    return found


def test_stats_show_the_stored_messages_though_the_counters_began_again(
    daybook: Daybook, fake_admin: FakeAdmin, fake: FakeCluster
) -> None:
    with blocking.connect(fake.url) as client, client.create_producer("orders") as producer:
        for _ in range(5):
            producer.send(b"x")
    fake_admin.answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{ROOT}/orders/stats"] = 200, {"msgInCounter": 0, "msgOutCounter": 0}
    lookup = "/lookup/v2/topic/persistent/public/default/orders"
    fake_admin.answers["GET", lookup] = 200, {"brokerUrl": fake.url}
    code, out, err = daybook("topics", "stats", "orders")
    assert (code, err) == (0, "")
    found = fields(out)
    assert (found["stored messages"], found["offsets"]) == ("5", "0 to 4")
    assert found["messages in (since the topic was loaded)"] == "0"
    assert found["messages out (since the topic was loaded)"] == "0"
    fake.topics[NAME].entries.clear()  # as a trim does
    assert fields(daybook("topics", "stats", "orders")[1])["offsets"] == "none, the next is 5"
    fake_admin.answers["GET", lookup] = 200, {"brokerUrl": "pulsar://127.0.0.1:1"}
    code, out, _ = daybook("topics", "stats", "orders")
    assert (code, fields(out)["stored messages"], fields(out)["offsets"]) == (0, "-", "-")


def test_stats_show_the_offsets_of_each_partition(
    daybook: Daybook, fake_admin: FakeAdmin, fake: FakeCluster
) -> None:
    fake.partitions[NAME] = 3  # the last one was never used, and has no statistics
    partition = f"{NAME}-partition-1"
    with blocking.connect(fake.url) as client, client.create_producer(partition) as producer:
        producer.send(b"x")
    fake_admin.answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 3}
    stats: dict[str, object] = {"partitions": {f"{NAME}-partition-{n}": {} for n in range(2)}}
    path = f"{ROOT}/orders/partitioned-stats?perPartition=true"
    fake_admin.answers["GET", path] = 200, stats
    lookup = "/lookup/v2/topic/persistent/public/default/orders-partition-0"
    fake_admin.answers["GET", lookup] = 200, {"brokerUrl": fake.url}
    code, out, _ = daybook("topics", "stats", "orders")
    assert code == 0
    assert fields(out)["stored messages"] == "1"
    rows = [re.split(" {2,}", line) for line in out.partition("\n\n")[2].splitlines()]
    assert rows == [
        ["partition", "stored messages", "offsets"],
        ["0", "0", "none, the next is 0"],
        ["1", "1", "0 to 0"],
    ]
    assert f"{NAME}-partition-2" not in fake.topics, "a question creates no topic"


def test_the_help_of_stats_says_since_when_messages_are_counted(daybook: Daybook) -> None:
    said = " ".join(daybook("topics", "stats", "--help")[1].split())
    assert "count since the broker loaded the topic" in said


def test_a_topic_in_use_is_deleted_by_force_only(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 0}
    busy = 412, {"reason": "it has subscriptions"}
    fake_admin.answers["DELETE", f"{ROOT}/orders?force=false"] = busy
    fake_admin.answers["DELETE", f"{ROOT}/orders?force=true"] = 204, None
    code, _, err = daybook("topics", "delete", "orders", "--yes")
    assert code == 1
    assert "--force" in err
    code, out, _ = daybook("topics", "delete", "orders", "--force", "--yes", "--output", "json")
    assert (code, json.loads(out)) == (0, {"deleted": NAME})


def test_what_is_not_there_says_where_to_look(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    del fake_admin
    code, _, err = daybook("topics", "stats", "nothing")
    assert code == 1
    assert "no such topic" in err
    assert "daybook topics list" in err


@pytest.mark.parametrize("arguments", [("list",), ("create", "x"), ("stats", "x")], ids=str)
def test_without_a_broker_it_says_how_to_get_one(
    daybook: Daybook, arguments: tuple[str, ...]
) -> None:
    code, out, err = daybook("topics", *arguments, "--admin-url", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "Error: No broker answers at http://127.0.0.1:1 (127.0.0.1:1: connection refused): start a"
        " cluster with `daybook standalone` (`daybook local status` shows the parts of one that"
        " runs), or say where yours is with --admin-url."
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats", "a/b"),
        ("list", "--namespace", "x"),
        ("list", "--admin-url", "pulsar://127.0.0.1:1"),
    ],
    ids=str,
)
def test_bad_names_are_sentences(daybook: Daybook, arguments: tuple[str, ...]) -> None:
    code, _, err = daybook("topics", *arguments)
    assert code == 1
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


def test_retention_is_set_for_a_namespace(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    path = "/admin/v2/namespaces/public/default/retention"
    fake_admin.answers["POST", path] = 204, None
    code, out, _ = daybook(
        "topics", "retention", "--minutes", "60", "--megabytes", "-1", "--output", "json"
    )
    assert code == 0
    assert json.loads(out) == {"namespace": "public/default", "minutes": 60, "megabytes": -1}
    assert fake_admin.asked == [
        ("POST", path, {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    ]
    assert daybook("topics", "retention", "--minutes", "60")[0] == 2


def test_compact_starts_a_compaction(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["PUT", f"{ROOT}/orders/compaction"] = 204, None
    code, out, _ = daybook("topics", "compact", "orders", "--output", "json")
    assert (code, json.loads(out)) == (0, {"topic": NAME, "status": "RUNNING"})
    fake_admin.answers["PUT", f"{ROOT}/orders/compaction"] = 409, {"reason": "it is running"}
    assert daybook("topics", "compact", "orders")[2] == "Error: it is running (HTTP 409).\n"


def test_compact_waits_for_the_end(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["PUT", f"{ROOT}/orders/compaction"] = 204, None
    state = {"status": "SUCCESS", "lastError": ""}
    fake_admin.answers["GET", f"{ROOT}/orders/compaction"] = 200, state
    code, out, _ = daybook("topics", "compact", "orders", "--wait", "--output", "json")
    assert (code, json.loads(out)["status"]) == (0, "SUCCESS")
    state = {"status": "ERROR", "lastError": "too many keys"}
    fake_admin.answers["GET", f"{ROOT}/orders/compaction"] = 200, state
    code, _, err = daybook("topics", "compact", "orders", "--wait")
    assert code == 1
    assert err == f"Error: {NAME} was not compacted: too many keys\n"


def test_properties_are_set_shown_and_removed(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    path = f"{ROOT}/orders/properties"
    fake_admin.answers["GET", path] = 200, {"team": "billing"}
    fake_admin.answers["PUT", path] = 204, None
    fake_admin.answers["DELETE", f"{path}?key=team"] = 204, None
    code, out, _ = daybook("topics", "properties", "get", "orders", "--output", "json")
    assert (code, json.loads(out)) == (0, {"team": "billing"})
    assert daybook("topics", "properties", "set", "orders", "team=a=b", "pager=")[0] == 0
    assert fake_admin.asked[-1][2] == {"team": "a=b", "pager": ""}
    assert daybook("topics", "properties", "remove", "orders", "team")[0] == 0
    code, _, err = daybook("topics", "properties", "set", "orders", "team")
    assert code == 2
    assert "'team' is no property: write NAME=VALUE." in err


def test_a_topic_is_created_with_properties(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["PUT", f"{ROOT}/orders"] = 204, None
    fake_admin.answers["PUT", f"{ROOT}/orders/partitions"] = 204, None
    assert daybook("topics", "create", "orders", "--property", "team=billing")[0] == 0
    daybook("topics", "create", "orders", "--partitions", "2", "--property", "team=billing")
    both = {"partitions": 2, "properties": {"team": "billing"}}
    assert [asked[2] for asked in fake_admin.asked] == [{"team": "billing"}, both]


def test_list_in_pages_names_each_partition(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    names = [f"persistent://public/default/p-partition-{n}" for n in range(3)]
    query = "after=persistent%3A%2F%2Fpublic%2Fdefault%2Forders&limit=3"
    fake_admin.answers["GET", f"{ROOT}?{query}"] = 200, names
    code, out, _ = daybook(
        "topics", "list", "--after", "orders", "--limit", "3", "--output", "json"
    )
    assert code == 0
    assert json.loads(out) == [{"topic": name} for name in names]
    query = "after=persistent%3A%2F%2Fshop%2Feu%2Forders"
    fake_admin.answers["GET", f"/admin/v2/persistent/shop/eu?{query}"] = 200, []
    assert daybook("topics", "list", "--namespace", "shop/eu", "--after", "orders")[0] == 0
    code, _, err = daybook("topics", "list", "--namespace", "shop/eu", "--after", NAME)
    assert (code, "is no topic of shop/eu" in err) == (1, True)


def test_explain_topic_says_in_which_step_a_load_is(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    answer = {
        "topic": NAME,
        "state": "loading",
        "summary": "The topic is being loaded, and is recovering its last ledgers, of 3.",
        "step": "recovering its last ledgers, of 3",
        "stepS": 12.5,
        "totalS": 13.0,
    }
    fake_admin.answers["GET", f"{ROOT}/orders/explain"] = 200, answer
    code, out, _ = daybook("explain", "topic", "orders", "--output", "json")
    assert (code, json.loads(out)) == (0, answer)
    code, out, _ = daybook("explain", "topic", "orders")
    assert code == 0
    assert "recovering its last ledgers, of 3" in out
    assert "12.5" in out
    answer |= {"state": "notLoaded", "stepS": None, "totalS": None, "broker": "b:8080"}
    fake_admin.answers["GET", f"{ROOT}/orders/explain"] = 200, answer
    _, out, _ = daybook("explain", "topic", "orders")
    assert "b:8080" in out
    assert "(s)" not in out, "nothing has taken 0 s"


def test_the_question_before_a_deletion_says_that_the_topic_is_a_partition(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    name = "orders-partition-1"
    fake_admin.answers["GET", f"{ROOT}/{name}/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{ROOT}/{name}/stats"] = 200, {"storageSize": 7}
    code, _, err = daybook("topics", "delete", name)
    assert (code, f"{name}, a partition of {NAME}, with 7 stored bytes" in err) == (1, True)
    assert {method for method, *_ in fake_admin.asked} == {"GET"}


def test_a_deletion_is_tried_dry(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    stats = {"publishers": [{}], "storageSize": 7, "subscriptions": {"s": {"consumers": [{}]}}}
    fake_admin.answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{ROOT}/orders/stats"] = 200, stats
    code, out, _ = daybook("topics", "delete", "orders", "--dry-run", "--output", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["producers and consumers"], found["deleted"]) == (2, "only with --force")
    assert found["subscriptions"] == ["s"]
    _, out, _ = daybook("topics", "delete", "orders", "--dry-run")
    assert ["subscriptions", "s"] in [line.split() for line in out.splitlines()]
    assert {method for method, *_ in fake_admin.asked} == {"GET"}


def test_subscriptions_are_created_listed_and_deleted(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    path = f"{ROOT}/orders/subscription/s"
    stats = {"subscriptions": {"s": {"type": "Shared", "consumers": [{}], "msgBacklog": 3}}}
    fake_admin.answers["PUT", path] = 204, None
    fake_admin.answers["DELETE", f"{path}?force=true"] = 204, None
    fake_admin.answers["POST", f"{path}/analyzeBacklog"] = 200, {"messages": 3}
    fake_admin.answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{ROOT}/orders/stats"] = 200, stats
    assert daybook("topics", "subscriptions", "create", "orders", "s", "--from", "earliest")[0] == 0
    _, out, _ = daybook("topics", "subscriptions", "list", "orders", "--output", "json")
    assert json.loads(out)[0] == {
        "subscription": "s",
        "type": "Shared",
        "consumers": 1,
        "backlog (messages)": 3,
    }
    _, out, _ = daybook("topics", "subscriptions", "delete", "orders", "s", "--dry-run")
    assert "backlog (messages)  3" in out
    assert daybook("topics", "subscriptions", "delete", "orders", "s", "--force", "--yes")[0] == 0


def test_a_subscription_is_created_on_a_topic_that_exists(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["PUT", f"{ROOT}/odrers/subscription/s"] = 204, None
    assert daybook("topics", "subscriptions", "create", "odrers", "s")[0] == 1
    assert {method for method, *_ in fake_admin.asked} == {"GET"}
    fake_admin.answers["GET", f"{ROOT}/odrers/partitions"] = 200, {"partitions": 2}
    path = f"{ROOT}/odrers-partition-1/subscription/s"
    fake_admin.answers["PUT", path] = 204, None
    assert daybook("topics", "subscriptions", "create", "odrers-partition-1", "s")[0] == 0


def test_each_partition_is_asked_where_brokers_take_one_topic_only(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    refused = {"reason": f"{NAME} is partitioned: name one of its partitions"}
    answers = fake_admin.answers
    answers["GET", f"{ROOT}/orders/partitions"] = 200, {"partitions": 2}
    state = {"topic": NAME, "state": "loaded", "summary": "The topic is served."}
    stuck = {"type": "Shared", "msgBacklog": 3, "summary": "No consumer."}
    size = {"messages": 3, "entries": 2, "bytes": 9, "exact": True}
    for method, path, answer in (
        ("POST", "/terminate", {"ledgerId": 3, "entryId": 9}),
        ("GET", "/explain", state),
        ("GET", "/subscription/s/explain", stuck),
        ("POST", "/subscription/s/analyzeBacklog", size),
    ):
        answers[method, f"{ROOT}/orders{path}"] = 405, refused
        for index in (0, 1):
            answers[method, f"{ROOT}/orders-partition-{index}{path}"] = 200, answer
    for words, shown in (
        (("topics", "terminate", "orders", "--yes"), "3:9:-1"),
        (("topics", "analyze", "orders", "s"), "yes"),
        (("explain", "topic", "orders"), "The topic is served."),
        (("explain", "subscription", "orders", "s"), "No consumer."),
    ):
        code, out, err = daybook(*words)
        assert code == 0, err
        lines = out.splitlines()
        assert [f"partition-{index}" in lines[index + 1] for index in (0, 1)] == [True, True]
        assert all(shown in line for line in lines[1:])
        assert len(json.loads(daybook(*words, "--output", "json")[1])) == 2
    answers["GET", f"{ROOT}/orders/explain"] = 405, {"reason": "orders stores no messages"}
    assert daybook("explain", "topic", "orders")[0] == 1


def test_a_topic_is_terminated(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    last = {"ledgerId": 3, "entryId": 9, "partitionIndex": -1}
    fake_admin.answers["GET", f"{ROOT}/orders/lastMessageId"] = 200, last
    fake_admin.answers["POST", f"{ROOT}/orders/terminate"] = 200, last
    _, out, _ = daybook("topics", "terminate", "orders", "--dry-run", "--output", "json")
    assert json.loads(out)["state"] == "would be terminated"
    assert [method for method, *_ in fake_admin.asked] == ["GET"]
    _, out, _ = daybook("topics", "terminate", "orders", "--yes", "--output", "json")
    assert json.loads(out) == {"topic": NAME, "state": "terminated", "last message": "3:9:-1"}
