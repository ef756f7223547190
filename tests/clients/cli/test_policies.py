"""`daybook namespaces` and `daybook topics policies` against a scripted REST; values as words."""

import json
from typing import Any

import pytest

from daybook.broker.admin import policies as rest
from daybook.broker.namespaces.policy_table import QUOTAS
from daybook.clients.cli import policies, policy_words
from daybook.clients.cli.errors import UserError
from tests.clients.cli.conftest import Daybook, FakeAdmin

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/orders"

SAID = {
    "retention": "7d 10G",
    "message-ttl": "2h30m",
    "subscription-expiry": "3h",
    "backlog-size": "10G producer_exception",
    "backlog-age": "1d consumer_backlog_eviction",
    "inactive-topics": "1h caught-up",
    "deduplication": "off",
    "persistence": "3 3 2",
    "max-producers": "5",
    "max-consumers": "unlimited",
    "max-topics": "12",
    "max-message-size": "100K",
    "compaction-threshold": "off",
    "publish-rate": "1000 10M",
    "dispatch-rate": "unlimited 10M 1s",
    "subscription-dispatch-rate": "100 unlimited 10s relative",
    "subscribe-rate": "5 30s",
    "delayed-delivery": "on 1h",
    "subscription-types": "Shared,Failover",
    "auto-topic-creation": "on 4",
    "auto-subscription-creation": "off",
    "schema-compatibility": "FULL",
    "schema-validation": "on",
    "schema-auto-update": "off",
}


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("message-ttl", ["2h"], 7200),
        ("message-ttl", ["off"], 0),
        ("subscription-expiry", ["90s"], 2),
        ("retention", ["7d", "10G"], {"retentionTimeInMinutes": 10080, "retentionSizeInMB": 10240}),
        (
            "retention",
            ["forever", "unlimited"],
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        ),
        ("retention", ["0s", "0"], {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("retention", ["0", "0"], {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("retention", ["1m", "1B"], {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
        (
            "backlog-size",
            ["10G", "producer_exception"],
            {"limitSize": 10 << 30, "policy": "producer_exception"},
        ),
        (
            "backlog-age",
            ["1d", "consumer_backlog_eviction"],
            {"limitTime": 86400, "policy": "consumer_backlog_eviction"},
        ),
        ("max-producers", ["5"], 5),
        ("max-producers", ["unlimited"], 0),
        ("deduplication", ["on"], True),
        ("max-message-size", ["1K"], 1024),
        (
            "publish-rate",
            ["1000", "10M"],
            {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 10 << 20},
        ),
        (
            "dispatch-rate",
            ["1000", "unlimited", "10s", "relative"],
            {
                "dispatchThrottlingRateInMsg": 1000,
                "dispatchThrottlingRateInByte": -1,
                "relativeToPublishRate": True,
                "ratePeriodInSecond": 10,
            },
        ),
        (
            "subscription-dispatch-rate",
            ["unlimited", "1M"],
            {
                "dispatchThrottlingRateInMsg": -1,
                "dispatchThrottlingRateInByte": 1 << 20,
                "relativeToPublishRate": False,
                "ratePeriodInSecond": 1,
            },
        ),
        (
            "subscribe-rate",
            ["5"],
            {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
        ),
        ("delayed-delivery", ["on", "1h"], {"active": True, "maxDeliveryDelayInMillis": 3600000}),
        (
            "auto-topic-creation",
            ["on", "4"],
            {
                "allowAutoTopicCreation": True,
                "topicType": "partitioned",
                "defaultNumPartitions": 4,
            },
        ),
        ("inactive-topics", ["off"], {"deleteWhileInactive": False}),
        (
            "inactive-topics",
            ["1h", "caught-up"],
            {
                "deleteWhileInactive": True,
                "maxInactiveDurationSeconds": 3600,
                "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            },
        ),
        ("subscription-types", ["Shared,Failover"], ["Shared", "Failover"]),
        ("schema-compatibility", ["full"], "FULL"),
        (
            "persistence",
            ["3", "3", "2"],
            {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
        ),
    ],
)
def test_values_are_written_as_people_do(name: str, words: list[str], value: object) -> None:
    assert policies.parse(name, policies.POLICIES[name], words) == value


def test_each_policy_is_shown_in_the_words_that_set_it() -> None:
    assert set(policies.POLICIES) == set(policy_words._WORDS)
    for name, said in SAID.items():
        value = policies.parse(name, policies.POLICIES[name], said.split())
        assert policy_words.words(name, value) == said
        again = policies.parse(name, policies.POLICIES[name], said.split())
        assert again == value


# Values that a broker may have, at the ends of their ranges.
HELD: list[tuple[str, object]] = [
    *(
        ("retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})
        for minutes in (-1, 0, 1, 10_081)
        for megabytes in (-1, 0, 1, 1 << 20)
    ),
    *((name, value) for name in ("message-ttl", "subscription-expiry") for value in (0, 1, 90_061)),
    *((name, 0) for name in ("max-producers", "max-topics", "max-message-size")),
    *(("backlog-size", {"limitSize": n, "policy": "producer_exception"}) for n in (-1, 0, 1023)),
    *(("backlog-age", {"limitTime": n, "policy": "producer_exception"}) for n in (-1, 0, 61)),
    *(
        ("publish-rate", {"publishThrottlingRateInMsg": n, "publishThrottlingRateInByte": n})
        for n in (-1, 0, 1)
    ),
    *(
        ("subscribe-rate", {"subscribeThrottlingRatePerConsumer": n, "ratePeriodInSecond": 30})
        for n in (-1, 0, 1)
    ),
    ("delayed-delivery", {"active": False}),
    ("auto-topic-creation", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}),
]


@pytest.mark.parametrize(("name", "value"), HELD)
def test_everything_that_is_shown_is_taken_back(name: str, value: object) -> None:
    shown = policy_words.words(name, value)
    assert shown is not None
    again = policies.parse(name, policies.POLICIES[name], shown.split())
    assert policy_words.words(name, again) == shown


def test_what_no_words_describe_is_shown_as_it_is() -> None:
    assert policy_words.words("retention", {"new": 1}) == '{"new": 1}'
    assert policy_words.words("message-ttl", None) is None
    no_quota = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
    assert policy_words.words("backlog-age", no_quota) == "unlimited"
    assert policy_words.words("subscription-types", []) is None
    assert policy_words.words("delayed-delivery", {"active": True, "maxDeliveryDelayInMillis": 1})


def test_a_policy_is_read_as_it_was_written(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    value = {"retentionTimeInMinutes": 10080, "retentionSizeInMB": -1}
    for root, words in (
        (NAMESPACE, ("namespaces", "policies")),
        (TOPIC, ("topics", "policies")),
    ):
        name = "public/default" if root == NAMESPACE else "orders"
        query = "" if root == NAMESPACE else "?applied=false"
        fake_admin.answers["POST", f"{root}/retention"] = 204, None
        fake_admin.answers["GET", f"{root}/retention{query}"] = 200, value
        _, out, _ = daybook(*words, "set", name, "retention", "1w", "unlimited")
        assert "7d unlimited" in out
        _, out, _ = daybook(*words, "get", name, "retention")
        assert "7d unlimited" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("message-ttl", ["2"]),
        ("retention", ["1d", "10"]),
        ("backlog-size", ["10", "producer_exception"]),
        ("publish-rate", ["10", "10"]),
        ("message-ttl", ["soon"]),
        ("message-ttl", ["1h", "2h"]),
        ("retention", ["7d"]),
        ("backlog-size", ["10G", "sometimes"]),
        ("max-producers", ["many"]),
        ("deduplication", ["perhaps"]),
        ("inactive-topics", ["1h", "never"]),
        ("persistence", ["3", "3"]),
        ("publish-rate", ["5"]),
        ("dispatch-rate", ["5", "relative"]),
        ("dispatch-rate", []),
        ("subscribe-rate", ["5", "6s", "7"]),
    ],
)
def test_a_wrong_value_is_refused_with_the_right_form(name: str, words: list[str]) -> None:
    with pytest.raises(UserError, match=f"write: {name}"):
        policies.parse(name, policies.POLICIES[name], words)


def test_every_policy_of_the_brokers_has_a_name_here() -> None:
    """`schemaAutoUpdateCompatibilityStrategy` is an older form of another one."""
    quota = {"backlogQuota"} if QUOTAS else set[str]()
    for level, paths in (("namespace", rest.NAMESPACE), ("topic", rest.TOPIC)):
        named = {getattr(p, level) for p in policies.POLICIES.values()} - {""}
        assert named == {*paths, *quota} - {"schemaAutoUpdateCompatibilityStrategy"}


def asked(fake_admin: FakeAdmin) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in fake_admin.asked]


def test_a_policy_of_a_namespace_is_set_shown_and_removed(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["POST", f"{NAMESPACE}/messageTTL"] = 204, None
    fake_admin.answers["DELETE", f"{NAMESPACE}/messageTTL"] = 204, None
    fake_admin.answers["GET", f"{NAMESPACE}/messageTTL"] = 200, 7200
    words = ("namespaces", "policies")
    assert daybook(*words, "set", "public/default", "message-ttl", "2h")[0] == 0
    code, out, _ = daybook(*words, "get", "public/default", "message-ttl", "--output", "json")
    assert code == 0
    assert json.loads(out)[0]["value"] == 7200
    assert daybook(*words, "remove", "public/default", "message-ttl")[0] == 0
    assert [each[2] for each in asked(fake_admin)] == [7200, None, None]
    code, _, err = daybook(*words, "set", "public/default", "max-message-size", "5")
    assert code != 0
    assert "has no policy" in err


def test_a_policy_of_a_topic_is_set(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["POST", f"{TOPIC}/maxProducers"] = 204, None
    code, out, _ = daybook(
        "topics", "policies", "set", "orders", "max-producers", "5", "--output", "json"
    )
    assert code == 0
    assert json.loads(out)["value"] == 5
    assert asked(fake_admin)[0][2] == 5


def test_namespaces_are_listed_created_and_deleted(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    base = "/admin/v2/namespaces/public"
    fake_admin.answers["GET", base] = 200, ["public/default"]
    fake_admin.answers["PUT", f"{base}/new"] = 204, None
    fake_admin.answers["GET", f"{base}/new"] = 200, {}
    fake_admin.answers["GET", "/admin/v2/persistent/public/new"] = 200, []
    fake_admin.answers["DELETE", f"{base}/new"] = 204, None
    assert "public/default" in daybook("namespaces", "list")[1]
    assert daybook("namespaces", "create", "public/new")[0] == 0
    code, out, err = daybook("namespaces", "delete", "public/new", "--dry-run")
    assert code == 0, err
    assert "would be deleted" in out
    assert "DELETE" not in {each[0] for each in asked(fake_admin)}
    assert daybook("namespaces", "delete", "public/new", "--yes")[0] == 0
