"""Each check of `daybook doctor` on answers that are written by hand."""

from dataclasses import replace
from typing import Any

import pytest

from daybook.clients.cli.doctor_answers import (
    Activity,
    BookieAnswers,
    BrokerAnswers,
    ClusterAnswers,
    Guard,
    Namespace,
    RecoveryAnswers,
    Sink,
    Unknown,
    needs_age,
)
from daybook.clients.cli.doctor_checks import (
    all_checks,
    check_bookies,
    check_brokers,
    check_coverage,
    check_disks,
    check_lists,
    check_loads,
    check_recovery,
    check_retention,
    check_sessions,
    check_sinks,
    check_spark,
    check_store,
    check_subscriptions,
    check_versions,
    check_waiting,
)

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
ORDERS = "persistent://public/default/orders"
GB = 1 << 30
SILENT = Unknown("nobody listens")


def broker() -> BrokerAnswers:
    return BrokerAnswers("", "0.1.0", {}, {}, {}, Activity())


def bookie(name: str, state: str = "writable", **more: Any) -> BookieAnswers:
    return BookieAnswers(name, state, free_bytes=90 * GB, total_bytes=100 * GB, **more)


def well() -> ClusterAnswers:
    """Return the answers of a cluster that needs nothing."""
    return ClusterAnswers(
        NOW_MS,
        7,
        registered=["a:1", "b:1"],
        brokers={"a:1": broker(), "b:1": broker()},
        quorums=None,
        guards=[Guard("a:1", frozenset({"f-1"})), Guard("b:1", frozenset({"f-1"}))],
        store="",
        bookies=[bookie("b1"), bookie("b2"), bookie("b3")],
        recovery=RecoveryAnswers(False, 0, {}, 3, []),
        sinks=[],
        namespaces={"public/default": Namespace(frozenset(), 10_080, -1)},
    )


def with_topic(**stats: Any) -> ClusterAnswers:
    answers = well()
    answers.brokers["a:1"].loaded = {ORDERS: stats}
    return answers


def subscribed(**each: Any) -> ClusterAnswers:
    rate = each.pop("rate", 0.0)
    one: dict[str, Any] = {"durable": True, "msgBacklog": 5, "consumers": [], **each}
    return with_topic(msgRateIn=rate, subscriptions={"sub": one})


def verdicts(answers: ClusterAnswers) -> dict[str, str]:
    return {check.name: check.verdict for check in all_checks(answers)}


def test_a_cluster_that_is_well_is_ok_in_every_check() -> None:
    checks = all_checks(well())
    assert {check.verdict for check in checks} == {"ok"}
    assert len({check.name for check in checks}) == len(checks) == 16
    assert all(check.sentence.endswith(".") for check in checks)


def test_nothing_that_was_not_answered_is_ok() -> None:
    empty = ClusterAnswers(NOW_MS, 7)
    assert set(verdicts(empty).values()) == {"unknown"}
    assert empty.nothing_known
    assert not well().nothing_known


PARTS: list[tuple[str, set[str]]] = [
    ("registered", {"brokers", "waiting topics", "lists of ledgers", "Spark subscriptions"}),
    ("quorums", {"bookies"}),
    ("guards", {"versions"}),
    ("store", {"metadata store"}),
    ("bookies", {"bookies", "disks"}),
    ("recovery", {"copies"}),
    ("sinks", {"sinks"}),
    ("namespaces", {"retention", "topics looked at"}),
]


@pytest.mark.parametrize(("part", "names"), PARTS)
def test_an_answer_that_lacks_makes_its_checks_unknown(part: str, names: set[str]) -> None:
    missing: dict[str, Any] = {part: SILENT}
    found = verdicts(replace(well(), **missing))
    if part == "registered":
        names = names | {"subscriptions", "topics looked at"}
    assert {name for name, verdict in found.items() if verdict != "ok"} == names
    assert {found[name] for name in names} == {"unknown"}


def test_the_topics_of_a_broker_that_does_not_tell_are_unknown() -> None:
    answers = well()
    answers.brokers["b:1"].loaded = SILENT
    unknown = {"waiting topics", "lists of ledgers", "Spark subscriptions", "subscriptions"}
    unknown.add("topics looked at")
    assert {name for name, verdict in verdicts(answers).items() if verdict == "unknown"} == unknown
    answers.brokers["a:1"].loaded = {ORDERS: {"waitingFor": "bookies"}}
    assert check_waiting(answers).verdict == "attention"  # A finding is reported all the same.


# -- brokers


def test_a_registered_broker_that_does_not_answer_has_failed() -> None:
    answers = well()
    answers.brokers["b:1"] = BrokerAnswers(SILENT, SILENT, SILENT)
    check = check_brokers(answers)
    assert check.verdict == "failed"
    assert "b:1 is registered and does not answer: nobody listens" in check.sentence
    assert "curl http://b:1/readyz" in check.remedy


def test_a_broker_that_was_not_asked_is_unknown_and_is_not_to_be_restarted() -> None:
    answers = well()
    unasked = Unknown("its port with TLS is not known", asked=False)
    answers.brokers["b:1"] = BrokerAnswers(unasked, unasked, unasked)
    check = check_brokers(answers)
    assert (check.verdict, check.items) == (
        "unknown",
        ["b:1 is registered and was not asked: its port with TLS is not known"],
    )
    assert "restart" not in check.remedy
    answers.brokers["a:1"].ready = "no contact with the metadata store"
    answers.brokers["a:1"].url = "https://a:8443"
    check = check_brokers(answers)
    assert (check.verdict, len(check.items)) == ("failed", 2)
    assert "curl --cacert AUTHORITY https://a:8443/readyz" in check.remedy


def test_a_broker_that_is_not_ready_has_failed() -> None:
    answers = well()
    answers.brokers["b:1"].ready = "no contact with the metadata store"
    check = check_brokers(answers)
    assert (check.verdict, check.items) == (
        "failed",
        ["b:1 is not ready: no contact with the metadata store"],
    )


def test_a_broker_that_was_named_and_is_gone_needs_attention() -> None:
    answers = replace(well(), named=["a:1", "c:1"])
    answers.brokers["c:1"] = BrokerAnswers(SILENT, SILENT, SILENT)
    check = check_brokers(answers)
    assert check.verdict == "attention"
    assert "c:1 is in the admin URL and does not answer" in check.sentence


def test_no_registered_broker_is_a_failure() -> None:
    check = check_brokers(replace(well(), registered=[]))
    assert check.verdict == "failed"
    assert "daybook broker" in check.remedy


def test_brokers_of_different_releases_or_formats_need_attention() -> None:
    answers = well()
    answers.brokers["b:1"].version = "0.2.0"
    assert check_versions(answers).items == ["0.1.0: a:1", "0.2.0: b:1"]
    assert check_versions(answers).verdict == "attention"
    guards = [Guard("a:1", frozenset({"f-1", "f-2"})), Guard("b:1", frozenset({"f-1"}))]
    check = check_versions(replace(well(), guards=guards))
    assert (check.verdict, check.items) == ("attention", ["b:1 lacks f-2"])


SESSIONS: list[tuple[Activity, str, str]] = [
    (Activity(sessions_lost=3, lost_ago_s=300), "attention", "b:1 3 times since its start, the"),
    (Activity(sessions_lost=1, lost_ago_s=300), "attention", "1 time since its start, the last"),
    (Activity(sessions_lost=1, lost_ago_s=9 * 86_400), "ok", "A note: Brokers have lost"),
]


@pytest.mark.parametrize(("activity", "verdict", "words"), SESSIONS)
def test_a_broker_that_lost_its_session_lately_needs_attention(
    activity: Activity, verdict: str, words: str
) -> None:
    answers = well()
    answers.brokers["b:1"].activity = activity
    check = check_sessions(answers)
    assert check.verdict == verdict
    assert words in check.sentence
    assert "`session_timeout_s`" in check.remedy
    answers.brokers["a:1"].activity = SILENT
    assert check_sessions(answers).verdict == ("unknown" if verdict == "ok" else verdict)


# -- bookies

BOOKIES: list[tuple[list[BookieAnswers], tuple[int, int] | None, str, str]] = [
    ([bookie("b1")], None, "ok", "1 copy"),
    ([bookie("b1"), bookie("b2"), bookie("b3", "away")], None, "attention", "b3 is away"),
    ([bookie("b1"), bookie("b2", "away"), bookie("b3", "away")], None, "failed", "1 of 3"),
    ([bookie("b1"), bookie("b2"), bookie("b3", silent="refused")], None, "attention", "refused"),
    ([bookie(f"b{n}") for n in range(4)] + [bookie("x", "away")], None, "attention", "x is away"),
    ([bookie(f"b{n}") for n in range(3)] + [bookie("x", "readonly")], None, "attention", "read-on"),
    (
        [bookie(f"b{n}") for n in range(3)] + [bookie("x", "readonly", order="leave")],
        None,
        "attention",
        "x has the order leave",
    ),
    (
        [bookie(f"b{n}") for n in range(3)] + [bookie("x", unhealthy="records were lost")],
        None,
        "attention",
        "records were lost",
    ),
    ([bookie("b1"), bookie("b2")], (3, 2), "attention", "should have 3 copies"),
    ([bookie("b1"), bookie("b2")], (3, 3), "failed", "must be on 3 of them"),
    ([bookie("b1"), bookie("b2", "readonly")], (1, 1), "attention", "b2 is read-only"),
    ([], None, "failed", "0 of 0"),
]


@pytest.mark.parametrize(("bookies", "quorums", "verdict", "words"), BOOKIES)
def test_bookies(
    bookies: list[BookieAnswers], quorums: tuple[int, int] | None, verdict: str, words: str
) -> None:
    check = check_bookies(replace(well(), bookies=bookies, quorums=quorums))
    assert check.verdict == verdict
    assert words in check.sentence
    assert ("daybook" in check.remedy) == (verdict != "ok")


def test_a_bookie_that_a_broker_does_not_use_needs_attention() -> None:
    answers = well()
    answers.brokers["b:1"].quarantine = {"b2": "it did not answer in time", "gone": "reset"}
    check = check_bookies(answers)
    assert check.verdict == "attention"
    assert check.items == ["the broker b:1 does not use b2: it did not answer in time"]
    assert "network" in check.remedy
    answers.brokers["a:1"].quarantine = SILENT
    assert check_bookies(answers).verdict == "attention"
    answers.brokers["b:1"].quarantine = {}
    check = check_bookies(answers)
    assert check.verdict == "unknown"
    assert "a:1" in check.sentence


def test_a_disk_that_is_nearly_full_needs_attention() -> None:
    full = BookieAnswers("b2", "writable", free_bytes=GB // 2, total_bytes=5 * GB)
    check = check_disks(replace(well(), bookies=[bookie("b1"), full]))
    assert check.verdict == "attention"
    assert check.items == ["b2 has 537 MB left"]
    share = BookieAnswers("b2", "writable", free_bytes=4 * GB, total_bytes=100 * GB)
    assert check_disks(replace(well(), bookies=[share])).verdict == "attention"
    silent = BookieAnswers("b2", "away")
    assert check_disks(replace(well(), bookies=[bookie("b1"), silent])).verdict == "unknown"


RECOVERY: list[tuple[RecoveryAnswers, str, str]] = [
    (RecoveryAnswers(False, 4, {"b3": 4}, 2, [], 4), "attention", "b3 lacks 4"),
    (RecoveryAnswers(False, 5_000, {"b3": 1_000}, 2, [], 1_000), "attention", "1,000 or more"),
    (RecoveryAnswers(False, 1, {}, 0, []), "failed", "no worker restores them"),
    (RecoveryAnswers(True, 0, {}, 2, []), "attention", "paused"),
    (RecoveryAnswers(False, 1, {}, 2, ["ledger 7: no copy"]), "failed", "ledger 7: no copy"),
]


@pytest.mark.parametrize(("recovery", "verdict", "words"), RECOVERY)
def test_ledgers_that_lack_copies(recovery: RecoveryAnswers, verdict: str, words: str) -> None:
    check = check_recovery(replace(well(), recovery=recovery))
    assert check.verdict == verdict
    assert words in check.sentence
    assert "daybook autorecovery" in check.remedy


def test_what_is_wrong_with_the_metadata_store_is_a_failure() -> None:
    check = check_store(replace(well(), store="the topics are bound to another instance"))
    assert (check.verdict, check.sentence) == (
        "failed",
        "the topics are bound to another instance.",
    )


def test_a_metadata_store_that_is_known_to_be_away_has_failed() -> None:
    nobody = Unknown("nobody listens at zk:2181", away=True)
    answers = replace(well(), store=nobody)
    check = all_checks(answers)[0]  # The table shows the cause before what follows from it.
    assert (check.name, check.verdict) == ("metadata store", "failed")
    assert check.sentence.endswith("nobody listens at zk:2181.")
    assert "daybook local start zookeeper" in check.remedy
    answers.registered = answers.sinks = Unknown("there was no contact with the metadata store")
    answers.brokers["a:1"].ready = "no contact with the metadata store"
    checks = {check.name: check for check in all_checks(answers)}
    assert checks["brokers"].verdict == "failed", "what it says of itself is known"
    assert checks["brokers"].items == ["a:1 is not ready: no contact with the metadata store"]
    assert checks["sinks"].verdict == "unknown"
    assert checks["sinks"].remedy == check.remedy


# -- topics

LOADS: list[tuple[Activity, str, str]] = [
    (Activity(), "ok", "No broker is loading topics"),
    (Activity(3, oldest_load_s=2), "ok", "A note: topics are being loaded, or requests wait: b:1"),
    (
        Activity(256, 1_744, 4, 4, requests_waiting=1_200),
        "ok",
        "b:1 is loading 256 topics, 1,744 topics wait for a place, the oldest for 4 s, 1,200"
        " requests of clients wait for a turn",
    ),
    (Activity(256, 1, 14, 2), "attention", "1 topic waits for a place, the oldest for 14 s"),
    (
        Activity(1, 0, 0, 45, ORDERS, "recovering its last ledgers"),
        "attention",
        f"b:1 is loading 1 topic ({ORDERS} for 45 s: recovering its last ledgers)",
    ),
]


@pytest.mark.parametrize(("activity", "verdict", "words"), LOADS)
def test_loads_of_topics(activity: Activity, verdict: str, words: str) -> None:
    answers = well()
    answers.brokers["b:1"].activity = activity
    check = check_loads(answers)
    assert check.verdict == verdict
    assert words in check.sentence
    if activity.topic:
        assert f"daybook explain topic {ORDERS}" in check.remedy
    answers.brokers["a:1"].activity = SILENT
    assert check_loads(answers).verdict == ("unknown" if verdict == "ok" else verdict)
    assert words in check_loads(answers).sentence or not activity.loading
    gone = replace(answers, registered=["b:1"])
    assert check_loads(gone) == check, "only the admin URL names the broker that is gone"
    assert check_sessions(gone).verdict == "ok"


SINKS: list[tuple[list[Sink], str, str]] = [
    ([Sink("s", "APPLIED", [], 0), Sink("n", "NEW", [], 0)], "ok", "2 sinks"),
    ([Sink("s", "BLOCKED", ["the topic was deleted"], 0)], "failed", "the topic was deleted"),
    ([Sink("s", "COMMITTED", [], NOW_MS - 1_000)], "ok", "No sink waits"),
    ([Sink("s", "COMMITTED", ["full"], NOW_MS - 300_000)], "attention", "s since 2027"),
    ([Sink("s", "COMMITTED")], "unknown", "since when s is COMMITTED"),
]


@pytest.mark.parametrize(("sinks", "verdict", "words"), SINKS)
def test_sinks(sinks: list[Sink], verdict: str, words: str) -> None:
    check = check_sinks(replace(well(), sinks=sinks))
    assert check.verdict == verdict
    assert words in check.sentence


def test_a_topic_that_waits_names_the_reason_and_the_command() -> None:
    check = check_waiting(with_topic(waitingFor="bookies"))
    assert (check.verdict, check.items) == ("attention", [f"{ORDERS} waits for bookies"])
    assert f"daybook explain topic {ORDERS}" in check.remedy
    assert check_waiting(with_topic(waitingFor="")).verdict == "ok"


def test_lists_of_ledgers() -> None:
    half = with_topic(ledgerListAlarm=True, ledgerListBytes=600, ledgerListBytesMax=1_000)
    check = check_lists(half)
    assert (check.verdict, check.items) == ("attention", [f"{ORDERS} (600 of 1,000 bytes)"])
    assert check_lists(with_topic(ledgerListFull="it is full")).verdict == "failed"
    assert check_lists(with_topic(ledgerListAlarm=False)).verdict == "ok"


MARKS = {"daybook.spark.host": "h1", "daybook.spark.topics": "orders"}
OLD, NEW = NOW_MS - 8 * DAY_MS, NOW_MS - 6 * DAY_MS
SPARK: list[tuple[dict[str, Any], str]] = [
    ({"lastMovedTimestamp": OLD}, "attention"),
    ({"lastMovedTimestamp": NEW, "earliestMsgPublishTimeInBacklog": OLD}, "ok"),
    ({"lastMovedTimestamp": OLD, "msgBacklog": 0}, "ok"),
    ({"lastMovedTimestamp": OLD, "durable": False}, "ok"),
    # A query that runs keeps its last batch as a backlog while nothing arrives.
    ({"lastMovedTimestamp": OLD, "consumers": [{}]}, "ok"),
    ({"lastMovedTimestamp": OLD, "consumers": [{}], "rate": 2.0}, "attention"),
    ({"lastMovedTimestamp": 0, "earliestMsgPublishTimeInBacklog": OLD}, "attention"),
    ({"lastMovedTimestamp": 0, "earliestMsgPublishTimeInBacklog": NEW}, "ok"),
    ({"lastMovedTimestamp": 0, "earliestMsgPublishTimeInBacklog": 0}, "unknown"),
]


@pytest.mark.parametrize(("each", "verdict"), SPARK)
def test_spark_subscriptions(each: dict[str, Any], verdict: str) -> None:
    answers = subscribed(subscriptionProperties=MARKS, **each)
    assert check_spark(answers).verdict == verdict
    assert check_subscriptions(answers).verdict == "ok"  # The other check leaves them out.


def test_a_stale_spark_subscription_is_named_with_the_command_that_deletes_it() -> None:
    check = check_spark(subscribed(subscriptionProperties=MARKS, lastMovedTimestamp=OLD))
    assert f"sub of {ORDERS} (5 messages, not moved since 2027-01-07" in check.sentence
    assert "of a query on h1" in check.sentence
    assert f"`daybook topics subscriptions delete {ORDERS} sub`" in check.remedy


def test_the_days_decide_what_is_stale() -> None:
    answers = subscribed(subscriptionProperties=MARKS, lastMovedTimestamp=NOW_MS)
    assert check_spark(replace(answers, stale_days=0)).verdict == "attention"
    assert check_spark(replace(answers, stale_days=0.1)).verdict == "ok"


def test_the_partitions_of_a_topic_are_one_finding() -> None:
    answers = well()
    one = {"msgBacklog": 5, "lastMovedTimestamp": OLD, "subscriptionProperties": MARKS}
    answers.brokers["a:1"].loaded = {
        f"{ORDERS}-partition-{n}": {"subscriptions": {"sub": one}} for n in range(3)
    }
    (item,) = check_spark(answers).items
    assert f"sub of {ORDERS} (15 messages" in item
    assert "in 3 partitions" in item


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"earliestMsgPublishTimeInBacklog": OLD}, "attention"),
    ({"earliestMsgPublishTimeInBacklog": NEW}, "ok"),
    ({"earliestMsgPublishTimeInBacklog": OLD, "consumers": [{}]}, "ok"),
    ({"earliestMsgPublishTimeInBacklog": OLD, "msgBacklog": 0}, "ok"),
    ({"earliestMsgPublishTimeInBacklog": OLD, "durable": False}, "ok"),
    ({"earliestMsgPublishTimeInBacklog": 0}, "unknown"),
]


@pytest.mark.parametrize(("each", "verdict"), OTHERS)
def test_other_subscriptions(each: dict[str, Any], verdict: str) -> None:
    assert check_subscriptions(subscribed(**each)).verdict == verdict
    assert check_spark(subscribed(**each)).verdict == "ok"


def test_the_statistics_of_one_topic_replace_those_of_all_loaded_ones() -> None:
    answers = subscribed(earliestMsgPublishTimeInBacklog=0)
    (stats,) = answers.topics.values()
    assert needs_age(stats) == ["sub"]
    newer = subscribed(earliestMsgPublishTimeInBacklog=OLD).topics
    assert needs_age(newer[ORDERS]) == []
    answers.asked = dict(newer)
    assert check_subscriptions(answers).verdict == "attention"
    answers.asked = {ORDERS: Unknown("the time was up")}
    assert check_subscriptions(answers).verdict == "unknown"
    assert check_waiting(answers).verdict == "ok"  # For this the first answer is enough.


# -- notes


def test_topics_that_were_not_looked_at_are_said() -> None:
    namespaces = {"public/default": Namespace(frozenset({ORDERS, "x"}), 1, 1)}
    check = check_coverage(replace(with_topic(), namespaces=namespaces))
    assert check.verdict == "ok"
    assert "1 topic was not looked at, of 2, because no broker has them" in check.sentence
    assert "nobody" not in check.sentence, "clients may wait for it"
    assert "--all-topics" in check.remedy
    every = replace(with_topic(), namespaces=namespaces, all_topics=True)
    every.asked = {"x": Unknown("the time was up")}
    assert check_coverage(every).verdict == "unknown"


def test_endless_retention_is_only_a_note() -> None:
    namespaces = {
        "t/a": Namespace(frozenset(), -1, -1),
        "t/b": Namespace(frozenset(), -1, 5),
        "t/c": Namespace(frozenset(), 5, -1),
    }
    check = check_retention(replace(well(), namespaces=namespaces))
    assert (check.verdict, check.items) == ("ok", ["t/a"])
    assert "daybook topics retention --namespace t/a" in check.remedy
    half = check_retention(replace(well(), namespaces={"t/a": SILENT}))
    assert half.verdict == "unknown"


def test_a_sentence_shows_three_findings_and_counts_the_rest() -> None:
    found = check_sinks(replace(well(), sinks=[Sink(f"s{n}", "BLOCKED") for n in range(9)]))
    assert "s0; s1; s2; and 6 more" in found.sentence
    assert len(found.items) == 9
