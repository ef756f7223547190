"""`daybook doctor` against a scripted REST and a metadata store in memory."""

import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, register_bookie
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.status_records import Alarm, AlarmKind, StatusRecords
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.store import MetadataStore, NoContactError
from tests.clients.cli.conftest import Daybook, FakeAdmin

PATHS = LedgerPaths()
ORDERS, IDLE = "persistent://public/default/orders", "persistent://public/default/idle"
DAY_MS = 86_400_000
STATS = "/admin/v2/persistent/public/default/{}/stats"


ACTIVITY = {
    "topicsLoading": 0,
    "loadsWaiting": 0,
    "oldestLoadWaitS": 0.0,
    "oldestLoadS": 0.0,
    "oldestLoadTopic": "",
    "oldestLoadStep": "",
    "requestsUnderWay": 0,
    "requestsWaiting": 0,
    "sessionsLost": 0,
    "sessionLostAgoS": None,
}


def loaded(**stats: Any) -> dict[str, Any]:
    return {"public/default": {"0x0_0x1": {"persistent": {ORDERS: stats}}}}


def sub(**each: Any) -> dict[str, Any]:
    return {"durable": True, "msgBacklog": 2, "consumers": [], **each}


@pytest.fixture
def rest(fake_admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """The only broker of a cluster, which is well; ZooKeeper is not known."""
    broker = urlsplit(os.environ["DAYBOOK_ADMIN_URL"]).netloc
    settings = {
        "quorums": "{'ensemble': 2, 'write': 2, 'ack': 1}",
        "default_retention_minutes": "5",
        "default_retention_mb": "-1",
    }
    answers: dict[str, Any] = {
        "/admin/v2/brokers": [broker],
        "/readyz": (b"ok", {}),
        "/admin/v2/brokers/version": (b"0.1.0", {}),
        "/admin/v2/brokers/internal-configuration": {"zookeeperServers": ""},
        "/admin/v2/brokers/configuration/runtime": settings,
        "/admin/v2/broker-stats/topics": loaded(waitingFor=""),
        "/admin/v2/daybook/sinks": [],
        "/admin/v2/daybook/quarantine": {},
        "/admin/v2/daybook/token-files": {},
        "/admin/v2/daybook/activity": ACTIVITY,
        "/admin/v2/tenants": ["public"],
        "/admin/v2/namespaces/public": ["public/default"],
        "/admin/v2/namespaces/public/default": {"retention_policies": None},
        "/admin/v2/persistent/public/default": [ORDERS, IDLE],
    }
    fake_admin.answers.update({("GET", path): (200, answer) for path, answer in answers.items()})
    monkeypatch.delenv("DAYBOOK_ZOOKEEPER", raising=False)
    return fake_admin


def looked(daybook: Daybook, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code, out, _ = daybook("doctor", "--output", "json", *arguments)
    checks = json.loads(out)
    assert all(set(check) == {"name", "verdict", "sentence", "remedy", "items"} for check in checks)
    return code, {check["name"]: check for check in checks}


def test_without_zookeeper_the_rest_is_looked_at_and_the_remainder_is_unknown(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    code, checks = looked(daybook)
    assert code == 1
    unknown = {name for name, check in checks.items() if check["verdict"] == "unknown"}
    assert unknown == {"metadata store", "versions", "bookies", "disks", "copies"}
    assert {check["verdict"] for check in checks.values()} == {"ok", "unknown"}
    assert "1 topic was not looked at, of 2" in checks["topics looked at"]["sentence"]
    assert {method for method, _, _ in rest.asked} == {"GET"}  # Nothing is changed.
    assert not any("stats" in path and "persistent" in path for _, path, _ in rest.asked)


def test_statistics_are_asked_where_the_age_of_a_backlog_is_not_known(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    old = SystemClock().now_ms() - 9 * DAY_MS
    unread = {"left": sub(earliestMsgPublishTimeInBacklog=0)}
    rest.answers["GET", "/admin/v2/broker-stats/topics"] = 200, loaded(subscriptions=unread)
    assert looked(daybook)[1]["subscriptions"]["verdict"] == "unknown"  # 404: it is gone
    read = {"subscriptions": {"left": sub(earliestMsgPublishTimeInBacklog=old)}}
    rest.answers["GET", STATS.format("orders")] = 200, read
    code, checks = looked(daybook)
    assert code == 1
    assert checks["subscriptions"]["verdict"] == "attention"
    assert f"left of {ORDERS} (2 messages" in checks["subscriptions"]["items"][0]
    assert looked(daybook, "--stale-days", "30")[1]["subscriptions"]["verdict"] == "ok"


def test_topics_that_are_not_loaded_are_asked_only_on_demand(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    rest.answers["GET", STATS.format("idle")] = 200, {"waitingFor": "bookies"}
    assert looked(daybook)[1]["waiting topics"]["verdict"] == "ok"
    _, checks = looked(daybook, "--all-topics")
    assert checks["waiting topics"]["items"] == [f"{IDLE} waits for bookies"]
    assert checks["topics looked at"]["sentence"] == "Every stored topic was looked at (2)."


def test_a_broker_that_is_not_ready_says_why(daybook: Daybook, rest: FakeAdmin) -> None:
    rest.answers["GET", "/readyz"] = 503, (b"no contact with the metadata store", {})
    code, checks = looked(daybook)
    assert code == 2
    assert checks["brokers"]["verdict"] == "failed"
    assert "no contact with the metadata store" in checks["brokers"]["sentence"]


def test_a_request_that_fails_makes_only_its_checks_unknown(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    rest.answers["GET", "/admin/v2/broker-stats/topics"] = 500, {"reason": "a bug"}
    rest.answers["GET", "/admin/v2/daybook/sinks"] = 200, [{"odd": 1}]
    rest.answers["GET", "/admin/v2/namespaces/public/default"] = 200, ["odd"]
    _, checks = looked(daybook)
    assert "a bug" in checks["Spark subscriptions"]["sentence"]
    for name in ("Spark subscriptions", "waiting topics", "sinks", "retention"):
        assert checks[name]["verdict"] == "unknown", name
    assert checks["brokers"]["verdict"] == "ok"


SUPER_USER = "the role 'ann' lacks the right 'super user' on the cluster"


@pytest.mark.parametrize(
    ("status", "why"),
    [(403, SUPER_USER), (401, "this broker asks for credentials, and there are none")],
)
def test_what_a_role_may_not_ask_is_unknown_and_never_ok(
    daybook: Daybook, rest: FakeAdmin, status: int, why: str
) -> None:
    """Everything but the readiness and the version of brokers needs a super user."""
    for method, path in list(rest.answers):
        if path not in ("/readyz", "/admin/v2/brokers/version"):
            rest.answers[method, path] = status, {"reason": why}
    code, checks = looked(daybook, "--token", "eyJ.secret.x")
    assert code == 1
    for name, check in checks.items():
        assert check["verdict"] == "unknown", name
        if name != "versions":
            assert why in check["sentence"], name
        assert "secret" not in json.dumps(check)
    for name in set(checks) - {"versions"}:
        assert "--token-file FILE" in checks[name]["remedy"], name


def test_a_question_that_is_denied_makes_its_checks_unknown(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    rest.answers["GET", "/admin/v2/daybook/sinks"] = 403, {"reason": SUPER_USER}
    _, checks = looked(daybook)
    assert checks["sinks"]["verdict"] == "unknown"
    assert SUPER_USER in checks["sinks"]["sentence"]
    assert checks["sinks"]["remedy"] == "Run it with the token of a super user: --token-file FILE."
    assert checks["waiting topics"]["verdict"] == "ok"


def test_checks_that_one_reason_keeps_unknown_are_one_row_of_the_table(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    for method, path in list(rest.answers):
        if path not in ("/readyz", "/admin/v2/brokers/version"):
            rest.answers[method, path] = 403, {"reason": SUPER_USER}
    _, out, _ = daybook("doctor")
    words = " ".join(out.split())
    assert words.count("Run it with the token of a super user: --token-file FILE.") == 1
    assert " ".join(word for word in SUPER_USER.split()[:6]) in words
    assert all(name in out for name in ("metadata store", "retention", "topics looked at"))


def test_a_port_with_tls_is_named_and_no_longer_timeout_is_advised(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    why = "this port speaks HTTP with TLS only: begin the URL with https://"
    rest.answers = {key: (400, {"reason": why}) for key in rest.answers}
    code, checks = looked(daybook)
    assert code == 2
    for name, check in checks.items():
        assert check["verdict"] == "unknown", name
        assert why in check["sentence"], name
        assert check["remedy"].startswith("Begin --admin-url with https://"), name


def test_a_list_of_revoked_tokens_that_cannot_be_used_needs_attention(
    daybook: Daybook, rest: FakeAdmin
) -> None:
    told = {"/etc/keys": "", "/etc/revoked": "line 2 is wrong: it is not UTF-8"}
    rest.answers["GET", "/admin/v2/daybook/token-files"] = 200, told
    check = looked(daybook)[1]["token files"]
    assert check["verdict"] == "attention"
    broker = urlsplit(os.environ["DAYBOOK_ADMIN_URL"]).netloc
    assert check["items"] == [f"{broker} cannot use /etc/revoked: line 2 is wrong: it is not UTF-8"]
    assert "daybook tokens check FILE" in check["remedy"]
    del rest.answers["GET", "/admin/v2/daybook/token-files"]
    check = looked(daybook)[1]["token files"]
    assert check["verdict"] == "unknown"
    assert "another release" in check["sentence"]


def test_a_broker_tells_of_its_loads_and_its_sessions(daybook: Daybook, rest: FakeAdmin) -> None:
    told = {"topicsLoading": 256, "loadsWaiting": 900, "oldestLoadWaitS": 22.5}
    told |= {"sessionsLost": 2, "sessionLostAgoS": 61.0}
    rest.answers["GET", "/admin/v2/daybook/activity"] = 200, ACTIVITY | told
    code, checks = looked(daybook)
    assert code == 1
    assert checks["loads of topics"]["verdict"] == "attention"
    assert (
        "900 topics wait for a place, the oldest for 22 s" in checks["loads of topics"]["items"][0]
    )
    assert checks["sessions"]["verdict"] == "attention"
    assert "2 times since its start, the last time 1m1s ago" in checks["sessions"]["sentence"]
    del rest.answers["GET", "/admin/v2/daybook/activity"]
    _, checks = looked(daybook)
    for name in ("loads of topics", "sessions"):
        assert checks[name]["verdict"] == "unknown"
        assert "another release" in checks[name]["sentence"]


def test_zookeeper_where_nobody_listens_has_failed_and_comes_first(
    daybook: Daybook, rest: FakeAdmin, hurried: None
) -> None:
    del hurried
    rest.answers["GET", "/readyz"] = 503, (b"no contact with the metadata store", {})
    code, checks = looked(daybook, "--zookeeper", "127.0.0.1:1")
    assert code == 2
    store = checks["metadata store"]
    assert store["verdict"] == "failed"
    assert "nobody listens at 127.0.0.1:1" in store["sentence"]
    assert "daybook local start zookeeper" in store["remedy"]
    for name in ("bookies", "disks", "copies", "versions"):
        assert checks[name]["verdict"] == "unknown", name
        assert checks[name]["remedy"] == store["remedy"], name
    _, out, _ = daybook("doctor", "--zookeeper", "127.0.0.1:1")
    assert out.splitlines()[2].split()[:3] == ["failed", "metadata", "store"]


@pytest.mark.parametrize(
    ("why", "verdict"),
    [
        ("nobody listens at a:1; nobody listens at b:1", "failed"),
        ("nobody listens at a:1; b:1 takes connections, and says nothing", "unknown"),
    ],
)
def test_zookeeper_has_failed_only_if_nobody_listens_at_any_address(
    daybook: Daybook, rest: FakeAdmin, monkeypatch: pytest.MonkeyPatch, why: str, verdict: str
) -> None:
    del rest

    def no_contact(hosts: str, **_: object) -> None:
        raise NoContactError(f"there is no session with ZooKeeper at {hosts}", why)

    monkeypatch.setattr("daybook.clients.cli.doctor_questions.open_zookeeper", no_contact)
    assert looked(daybook, "--zookeeper", "a:1,b:1")[1]["metadata store"]["verdict"] == verdict


def test_the_table_has_the_worst_first_with_the_remedy(daybook: Daybook, rest: FakeAdmin) -> None:
    rest.answers["GET", "/admin/v2/daybook/sinks"] = (
        200,
        [{"name": "archive", "state": "BLOCKED", "partitions": [{"reason": "it was deleted"}]}],
    )
    code, out, _ = daybook("doctor")
    assert code == 2
    first = out.splitlines()[2].split()
    assert first[:2] == ["failed", "sinks"]
    assert "daybook sinks show archive" in " ".join(out.split())


def test_nothing_that_answers_is_exit_code_2(
    daybook: Daybook, monkeypatch: pytest.MonkeyPatch, hurried: None
) -> None:
    del hurried
    monkeypatch.setenv("DAYBOOK_ADMIN_URL", "http://127.0.0.1:1")
    code, out, err = daybook("doctor", "--zookeeper", "127.0.0.1:1", "--output", "json")
    assert code == 2
    failed = {check["name"] for check in json.loads(out) if check["verdict"] != "unknown"}
    assert failed == {"metadata store"}
    assert "Neither a broker nor ZooKeeper answers" in err


def test_a_cluster_that_is_not_known_is_exit_code_2(
    daybook: Daybook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DAYBOOK_ADMIN_URL", "DAYBOOK_ZOOKEEPER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAYBOOK_SERVICE_URL", "pulsar://h:1")
    code, _, err = daybook("doctor")
    assert code == 2
    assert "--admin-url" in err
    assert daybook("doctor", "--admin-url", "h:1")[0] == 2


def test_it_ends_in_time_if_nobody_ever_answers(daybook: Daybook, silent_port: int) -> None:
    began = time.monotonic()
    code, out, _ = daybook(
        *("doctor", "--admin-url", f"http://127.0.0.1:{silent_port}", "--timeout", "2"),
        *("--zookeeper", f"127.0.0.1:{silent_port}", "--output", "json"),
    )
    assert time.monotonic() - began < 30  # generous: the machine may be busy
    assert code == 2
    assert {check["verdict"] for check in json.loads(out)} == {"unknown"}


# -- with a metadata store


class Store:
    """The content of the metadata store when the command opens it."""

    def __init__(self, broker: str) -> None:
        self.members = {broker: f"http://{broker}"}
        self.sinks: list[str] = []
        self.lost: dict[int, list[str]] = {}
        self.alarms: list[Alarm] = []
        self.ordered: list[str] = []

    async def fill(self, store: MetadataStore) -> None:
        await ensure_layout(store, PATHS, Random(1))
        for name in ("127.0.0.1:1", "b2"):
            await create_cookie(store, PATHS, Cookie(name, ["/j"], ["/l"], "i"))
        await register_bookie(store, PATHS, BookieInfo("127.0.0.1:1", "127.0.0.1", 1))
        for name, url in self.members.items():
            value = json.dumps({"webServiceUrl": url}).encode()
            await store.create(f"/loadbalance/brokers/{name}", value, make_parents=True)
            guard = json.dumps({"brokerId": name, "formats": ["f-1"]}).encode()
            await store.create(f"/daybook/guards/{len(name)}", guard, make_parents=True)
        for name in self.sinks:
            await store.create(f"/daybook/sinks/{name}", b"{}", make_parents=True)
        underreplication = Underreplication(store, PATHS, "")
        for ledger_id, missing in self.lost.items():
            await underreplication.mark(ledger_id, missing, 0)
        for alarm in self.alarms:
            await StatusRecords(store, PATHS).raise_alarm(alarm)
        for name in self.ordered:
            order = AdminRecord(AdminState.READ_ONLY, 0)
            await AdminStates(store, PATHS).give(BookieId(name), order)


@pytest.fixture
def stored(rest: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> Store:
    """ZooKeeper at zk:1, of which the broker tells."""
    (broker,) = rest.answers["GET", "/admin/v2/brokers"][1]
    content = Store(broker)

    @asynccontextmanager
    async def open_memory(hosts: str, **_: object) -> AsyncGenerator[MetadataStore]:
        assert hosts == "zk:1"
        store = MemoryStore(SystemClock()).session("cli")
        await content.fill(store)
        yield store

    monkeypatch.setattr("daybook.clients.cli.doctor_questions.open_zookeeper", open_memory)
    path = "/admin/v2/brokers/internal-configuration"
    config = {"zookeeperServers": "zk:1", "ledgersRootPath": "/ledgers"}
    rest.answers["GET", path] = 200, config
    return content


def test_the_brokers_tell_where_zookeeper_is(daybook: Daybook, stored: Store) -> None:
    del stored
    _, checks = looked(daybook)
    assert checks["metadata store"]["verdict"] == "ok"
    assert checks["versions"]["verdict"] == "ok"
    assert checks["copies"]["verdict"] == "ok"
    bookies = checks["bookies"]
    assert bookies["verdict"] == "failed"
    assert "0 of 2 bookies take entries, and each entry must be on 1" in bookies["sentence"]
    assert bookies["items"][0].startswith("127.0.0.1:1 is registered and does not answer:")
    assert bookies["items"][1] == "b2 is away"
    assert checks["disks"]["verdict"] == "unknown"


def test_the_metadata_store_tells_where_the_brokers_are(
    daybook: Daybook, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    del stored
    monkeypatch.delenv("DAYBOOK_ADMIN_URL")
    code, checks = looked(daybook, "--zookeeper", "zk:1")
    assert code == 2
    assert checks["brokers"]["verdict"] == "ok"
    assert checks["waiting topics"]["verdict"] == "ok"


def test_marks_alarms_and_orders_are_found(daybook: Daybook, stored: Store) -> None:
    stored.lost = {7: ["b2"], 8: ["b2"]}
    stored.ordered = ["127.0.0.1:1"]
    assert looked(daybook)[1]["copies"]["items"] == ["b2 lacks 2"]
    stored.alarms = [Alarm(7, AlarmKind.NO_COPY, "all are gone", 0)]
    _, checks = looked(daybook)
    assert checks["copies"]["verdict"] == "failed"
    assert checks["copies"]["items"] == ["ledger 7: no copy (all are gone)"]


def test_a_sink_is_committed_for_long_by_the_time_of_its_record(
    daybook: Daybook, stored: Store, rest: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.sinks = ["a%2Fb"]
    view: dict[str, Any] = {"name": "a/b", "state": "COMMITTED", "partitions": []}
    rest.answers["GET", "/admin/v2/daybook/sinks"] = 200, [view]
    assert looked(daybook)[1]["sinks"]["verdict"] == "ok"
    monkeypatch.setattr("daybook.clients.cli.doctor_checks.COMMITTED_LONG_S", -60.0)
    assert looked(daybook)[1]["sinks"]["verdict"] == "attention"


def test_zookeeper_of_another_cluster_is_a_failure(daybook: Daybook, stored: Store) -> None:
    stored.members = {"elsewhere:8080": "http://elsewhere:8080"}
    code, checks = looked(daybook)
    assert code == 2
    assert checks["metadata store"]["verdict"] == "failed"
    assert "belongs to another cluster" in checks["metadata store"]["sentence"]
    assert checks["bookies"]["verdict"] == "unknown"
    assert checks["brokers"]["verdict"] == "ok"
