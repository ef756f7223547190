"""`daybook bundles` and `daybook brokers` against a scripted REST."""

import json
import os

from tests.clients.cli.conftest import Daybook, FakeAdmin

NAMESPACE = "/admin/v2/namespaces/public/default"
LOWER, UPPER = "0x00000000_0x80000000", "0x80000000_0xffffffff"
SINCE = "2023-11-14T22:13:20+00:00"
ROW = {
    "broker": "a:8080",
    "leads": True,
    "bundles": 1,
    "load": 1.5,
    "topics": 3,
    "producers": 1,
    "consumers": 2,
    "msgRateIn": 10.04,
    "msgRateOut": 0.0,
    "msgThroughputIn": 100.4,
    "msgThroughputOut": 0.0,
    "reportedMs": 1_700_000_000_000,
}


def answer_bundles(fake_admin: FakeAdmin) -> None:
    boundaries = ["0x00000000", "0x80000000", "0xffffffff"]
    fake_admin.answers["GET", f"{NAMESPACE}/bundles"] = 200, {"boundaries": boundaries}
    fake_admin.answers["GET", "/admin/v2/brokers"] = 200, ["a:8080"]
    owned: dict[str, object] = {f"public/default/{LOWER}": {}, f"public/other/{UPPER}": {}}
    fake_admin.answers["GET", "/admin/v2/brokers/-/a%3A8080/ownedNamespaces"] = 200, owned


def test_bundles_are_listed_with_their_brokers(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer_bundles(fake_admin)
    answers = fake_admin.answers
    broker = os.environ["DAYBOOK_ADMIN_URL"].removeprefix("http://")
    answers["GET", "/admin/v2/brokers"] = 200, [broker, "127.0.0.1:1"]
    lower: dict[str, object] = {f"public/default/{LOWER}": {}}
    upper: dict[str, object] = {f"public/default/{UPPER}": {}}
    for name, owned in ((broker, lower), ("127.0.0.1:1", upper)):
        path = f"/admin/v2/brokers/-/{name.replace(':', '%3A')}/ownedNamespaces"
        answers["GET", path] = 200, owned
    stats = {f"public/default/{LOWER}": {"topics": 3, "msgRateIn": 10.04, "msgRateOut": 0.0}}
    report: dict[str, object] = {"lastStats": stats, "numTopics": 3}
    answers["GET", "/admin/v2/broker-stats/load-report"] = 200, report
    code, out, _ = daybook("bundles", "list", "public/default", "--output", "json")
    assert code == 0
    one, two = json.loads(out)
    assert (one["bundle"], one["broker"], two["broker"]) == (LOWER, broker, "127.0.0.1:1")
    assert (one["loaded topics"], one["messages in/s"], two["loaded topics"]) == (3, 10.0, None)
    del stats[f"public/default/{LOWER}"]
    for topics, shown in ((0, 0), (3, None)):  # the busiest bundles are reported, and not all
        report["numTopics"] = topics
        one = json.loads(daybook("bundles", "list", "public/default", "--output", "json")[1])[0]
        assert one["loaded topics"] == shown


def test_a_bundle_that_moves_has_the_next_broker_and_the_time(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    """An operator who has begun a move saw a bundle without topics, and no sign of the move."""
    broker = os.environ["DAYBOOK_ADMIN_URL"].removeprefix("http://")
    lower: dict[str, object] = {
        "bundle": LOWER,
        "broker": broker,
        "movingTo": "",
        "movingSinceMs": None,
    }
    upper = {"bundle": UPPER, "broker": "", "movingTo": "", "movingSinceMs": None}
    path = "/admin/v2/daybook/bundles/public/default"
    fake_admin.answers["GET", path] = 200, [lower, upper]
    _, out, _ = daybook("bundles", "list")
    assert "moving" not in out
    lower |= {"movingTo": "b:8080", "movingSinceMs": 1_700_000_000_000}
    _, out, _ = daybook("bundles", "list")
    assert out.splitlines()[1].split() == [LOWER, broker, "-", "-", "-", "b:8080", SINCE]
    assert "loaded topics" in out.splitlines()[0]
    one, two = json.loads(daybook("bundles", "list", "--output", "json")[1])
    assert (one["moving to"], one["moving since"]) == ("b:8080", SINCE)
    assert (two["moving to"], two["moving since"]) == (None, None)


def test_bundles_are_moved_split_and_unloaded(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer_bundles(fake_admin)
    targets = [
        f"{NAMESPACE}/{LOWER}/unload?destinationBroker=a%3A8080",
        f"{NAMESPACE}/{LOWER}/split?splitAlgorithmName=topic_count_equally_divide",
        f"{NAMESPACE}/{LOWER}/split?splitAlgorithmName=range_equally_divide",
        f"{NAMESPACE}/{LOWER}/unload",
        f"{NAMESPACE}/unload",
    ]
    for target in targets:
        fake_admin.answers["PUT", target] = 204, None
    for words in (
        ("move", "public/default", LOWER, "http://a:8080"),
        ("split", "public/default", LOWER),
        ("split", "public/default", LOWER, "--by", "range"),
        ("unload", "public/default", LOWER),
        ("unload", "public/default"),
    ):
        assert daybook("bundles", *words)[0] == 0
    assert [each[1] for each in fake_admin.asked if each[0] == "PUT"] == targets


def test_a_move_that_moves_nothing_is_no_success(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer_bundles(fake_admin)
    for words in (("move", "public/default", UPPER, "b:8080"), ("unload", "public/default", UPPER)):
        code, _, err = daybook("bundles", *words)
        assert code == 1
        assert "No broker serves the bundle" in err
    assert {each[0] for each in fake_admin.asked} == {"GET"}
    fake_admin.answers["PUT", f"{NAMESPACE}/{LOWER}/unload?destinationBroker=b%3A8080"] = 204, None
    code, _, err = daybook("bundles", "move", "public/default", LOWER, "b:8080")
    assert code == 1
    assert "a:8080 serves it now" in err


def test_a_split_that_is_refused_says_what_helps(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer_bundles(fake_admin)
    path = f"{NAMESPACE}/{LOWER}/split?splitAlgorithmName=topic_count_equally_divide"
    refused = {"reason": "the bundle cannot be split by topic_count_equally_divide: too few topics"}
    fake_admin.answers["PUT", path] = 412, refused
    code, _, err = daybook("bundles", "split", "public/default", LOWER)
    assert code == 1
    assert "`--by range` halves the range instead" in err
    _, out, _ = daybook("bundles", "split", "public/default", LOWER, "--dry-run")
    assert "if two of its topics or more are loaded" in out


def test_a_bundle_that_is_not_there_is_looked_up_in_the_list(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    answer_bundles(fake_admin)
    code, _, err = daybook("bundles", "split", "public/default", "0x0_0x1", "--dry-run")
    assert code == 1
    assert "`daybook bundles list public/default`" in err


def test_a_broker_that_is_drained_already_says_so(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    path = "/admin/v2/daybook/brokers/a%3A8080/drain?dryRun=false"
    fake_admin.answers["POST", path] = 200, {}
    _, out, _ = daybook("brokers", "drain", "a:8080")
    assert "takes no more until it is started again" in out


def test_a_dry_run_of_a_move_changes_nothing(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer_bundles(fake_admin)
    for words in (
        ("move", "public/default", LOWER, "b:8080"),
        ("split", "public/default", LOWER),
        ("unload", "public/default", LOWER),
    ):
        code, out, _ = daybook("bundles", *words, "--dry-run")
        assert code == 0
        assert "a:8080" in out
    assert {each[0] for each in fake_admin.asked} == {"GET"}


def test_brokers_are_listed_with_their_loads(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", "/admin/v2/daybook/brokers"] = 200, [ROW]
    code, out, _ = daybook("brokers", "list", "--output", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["leads"], row["loaded topics"], row["reported"]) == ("yes", 3, SINCE)
    code, out, _ = daybook("brokers", "load", "--output", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["messages in/s"], row["bytes in/s"]) == (10.0, 100)
    assert row["reported"].startswith("2023-11-14T22:13:20")
    fake_admin.answers["GET", "/admin/v2/daybook/brokers"] = 200, [{**ROW, "reportedMs": 0}]
    for words in ("list", "load"):
        (row,) = json.loads(daybook("brokers", words, "--output", "json")[1])
        assert (row["loaded topics"], row["reported"]) == (None, "never"), "0 would be a claim"


def test_a_broker_is_drained(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    path = "/admin/v2/daybook/brokers/a%3A8080/drain"
    for dry_run in ("true", "false"):
        plan = {f"public/default/{LOWER}": "b:8080"}
        fake_admin.answers["POST", f"{path}?dryRun={dry_run}"] = 200, plan
    for words in (("--dry-run",), ()):
        code, out, _ = daybook("brokers", "drain", "a:8080", *words, "--output", "json")
        assert code == 0
        assert json.loads(out) == [{"bundle": f"public/default/{LOWER}", "to": "b:8080"}]
    assert [each[1] for each in fake_admin.asked] == [
        f"{path}?dryRun=true",
        f"{path}?dryRun=false",
    ]


def test_the_decisions_are_those_of_the_leader(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    url = os.environ["DAYBOOK_ADMIN_URL"]
    fake_admin.answers["GET", "/admin/v2/brokers/leaderBroker"] = 200, {"serviceUrl": url}
    one = {
        "timeMs": 1_700_000_000_000,
        "decision": "move",
        "bundle": f"public/default/{LOWER}",
        "source": "a:8080",
        "target": "b:8080",
        "reason": "a:8080 has a load of 5.00 and b:8080 1.00",
        "outcome": "done",
    }
    now = {**one, "decision": "nothing", "bundle": "", "reason": "they are even"}
    found = {"leads": True, "dryRun": False, "now": now, "decisions": [one]}
    fake_admin.answers["GET", "/admin/v2/daybook/balance"] = 200, found
    code, out, _ = daybook("brokers", "decisions")
    assert code == 0
    assert "they are even" in " ".join(out.split())
    code, out, _ = daybook("brokers", "decisions", "--output", "json")
    assert json.loads(out) == found
