"""A cluster that asks who its clients are and what they may do: Spark, pipelines, the command line.

The roles have nothing but what their namespace grants: `writer` may produce, `reader` consume,
`copier` both, and `stranger` nothing.
"""

import base64
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bcrypt
import jwt
import pytest

from daybook.clients.python import blocking
from daybook.clients.python.credentials import PasswordFile
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.certificates import Authority
from tests.harness.processes import ServerProcess
from tests.real.commands import run_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real.spark_session import SharedSpark

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("locked-clients")]

PATIENCE_S = 300
SECRET = bytes(range(50, 114))
PASSWORD = "correct horse battery staple"
NAMESPACE = "shop/eu"
ROWS = 1000
LASTS_S = 6.0
GRANTS = {
    "writer": ["produce"],
    "reader": ["consume"],
    "copier": ["produce", "consume"],
    "ben": ["produce", "consume"],
}
LOCKED = {
    "AUTHENTICATION": '["token", "basic"]',
    "TOKEN_SECRET_KEY": "data:;base64," + base64.b64encode(SECRET).decode(),
    "AUTHORIZATION": "true",
    "SUPER_USERS": '["admin", "broker"]',
    "AUTH_REFRESH_S": "10",
    "BALANCE_INTERVAL_S": "1000000",
}


def token(role: str, lasts_s: float | None = None) -> str:
    claims: dict[str, Any] = {"sub": role}
    if lasts_s is not None:
        claims["exp"] = time.time() + lasts_s
    return jwt.encode(claims, SECRET, "HS256")


@dataclass
class Locked:
    cluster: StandaloneProcess
    directory: Path

    def file(self, role: str) -> str:
        """Return the path of a file with a token of the role."""
        path = self.directory / f"{role}.token"
        if not path.exists():
            path.write_text(token(role))
        return str(path)

    @property
    def password(self) -> str:
        return str(self.directory / "password")

    def admin(self, role: str = "admin") -> blocking.Admin:
        return blocking.connect_admin(self.cluster.admin_url, token=token(role))

    def client(self, role: str) -> blocking.Client:
        return blocking.connect(self.cluster.service_url, token=token(role))

    def topic(self, name: str, partitions: int = 2) -> str:
        full = f"persistent://{NAMESPACE}/{name}"
        with self.admin() as admin:
            admin.create_topic(full, partitions=partitions)
        return full

    def source(self, topic: str, role: str = "reader") -> dict[str, str]:
        url = self.cluster.service_url
        return {"service.url": url, "topic": topic, "token.file": self.file(role)}

    def sink(self, topic: str, role: str = "writer") -> dict[str, str]:
        once = {"semantics": "exactly-once", "admin.url": self.cluster.admin_url}
        return {**self.source(topic, role), **once}

    def run(
        self, *words: str, spark: "SparkSession | None" = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command that knows the cluster by a context, with no credentials."""
        unset = {name: None for name in os.environ if "DAYBOOK" in name}
        config = {"XDG_CONFIG_HOME": str(self.directory / "config")}
        done = run_here(*words, environ={**unset, **config}, directory=self.directory, spark=spark)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, spark: "SparkSession | None" = None) -> Any:
        done = self.run(*words, "--output", "json", spark=spark)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    directory = tmp_path_factory.mktemp("locked-clients")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (directory / "users").write_text(f"ben:{hashed}\n")
    (directory / "password").write_text(f"{PASSWORD}\n")
    (directory / "broker.token").write_text(token("broker"))
    own = {
        "BASIC_FILE": str(directory / "users"),
        "BROKER_TOKEN_FILE": str(directory / "broker.token"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**LOCKED, **own}.items():
            patch.setenv(f"DAYBOOK_BROKER_{name}", value)
        running = StandaloneProcess(directory=directory / "data", options=ANY_PORTS)
    with running:
        made = Locked(running, directory)
        with made.admin() as admin:
            admin.create_tenant("shop", admin.clusters(), ["owner"])
            admin.create_namespace(NAMESPACE)
            for role, actions in GRANTS.items():
                admin.grant_on_namespace(NAMESPACE, role, actions)
        urls = ("--service-url", running.service_url, "--admin-url", running.admin_url)
        zookeeper = ("--zookeeper", running.zookeeper)
        for role in ("admin", "owner", *GRANTS, "stranger"):
            credentials: tuple[str, ...] = ("--token-file", made.file(role))
            if role == "ben":
                credentials = ("--basic-user", "ben", "--basic-password-file", made.password)
            added = made.run("context", "add", role, *urls, *zookeeper, *credentials)
            assert added.returncode == 0, added.stderr
        nobody = made.run("context", "add", "nobody", *urls, *zookeeper, "--use")
        assert nobody.returncode == 0, nobody.stderr
        yield made


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(shared_spark: "SharedSpark", events: Path) -> "Iterator[SparkSession]":
    """Open a session in this process, with the log from which its pages are made."""
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with shared_spark.session(settings=logged) as session:
        yield session


def write(spark: "SparkSession", options: dict[str, str], rows: int = ROWS) -> None:
    frame = spark.range(0, rows).selectExpr("cast(cast(id as string) as binary) value")
    frame.write.format("daybook").options(**options).mode("append").save()


def values(spark: "SparkSession", options: dict[str, str]) -> list[int]:
    frame = spark.read.format("daybook").options(**options).load().select("value")
    return sorted(int(row["value"]) for row in frame.collect())


# -- Spark


def test_a_job_needs_produce_to_write_exactly_once_and_consume_to_read(
    locked: Locked, spark: "SparkSession", topic: str
) -> None:
    full = locked.topic(topic)
    write(spark, locked.sink(full))
    for way in ("auto", "brokers", "bookies"):
        assert values(spark, {**locked.source(full), "read": way}) == list(range(ROWS)), way


@pytest.mark.parametrize(
    ("role", "right"),
    [("reader", "'produce'"), ("stranger", "produce or consume"), ("nobody", "credentials")],
)
def test_a_job_of_the_wrong_role_writes_nothing(
    locked: Locked, spark: "SparkSession", topic: str, role: str, right: str
) -> None:
    full = locked.topic(topic)
    for options in (locked.sink(full, role), locked.source(full, role)):
        if role == "nobody":
            del options["token.file"]
        with pytest.raises(Exception, match=f"lacks the right.*{right}|{right}") as caught:
            write(spark, options)
        assert role in str(caught.value) or role == "nobody"
    assert values(spark, locked.source(full)) == []


@pytest.mark.parametrize("role", ["writer", "stranger"])
def test_a_job_of_the_wrong_role_reads_nothing(
    locked: Locked, spark: "SparkSession", topic: str, role: str
) -> None:
    full = locked.topic(topic)
    write(spark, locked.sink(full))
    for way in ("auto", "brokers", "bookies"):
        with pytest.raises(Exception, match=f"the role '{role}' lacks the right"):
            values(spark, {**locked.source(full, role), "read": way})


def test_a_job_with_a_user_and_a_password(
    locked: Locked, spark: "SparkSession", topic: str
) -> None:
    full = locked.topic(topic)
    basic = {"basic.user": "ben", "basic.password.file": locked.password}
    sink, source = locked.sink(full), locked.source(full)
    del sink["token.file"], source["token.file"]
    write(spark, {**sink, **basic})
    assert values(spark, {**source, **basic}) == list(range(ROWS))
    with pytest.raises(Exception, match="cannot be read: No such file"):
        values(spark, {**source, **basic, "basic.password.file": "/not/there"})


@contextmanager
def renewed(path: Path, role: str) -> Iterator[None]:
    """Replace a file by one with a token that lives for seconds, again and again."""
    ended = threading.Event()

    def renew() -> None:
        new = path.with_suffix(".new")
        new.write_text(token(role, LASTS_S))
        new.replace(path)

    def run() -> None:
        while not ended.wait(LASTS_S / 4):
            renew()

    renew()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_stream_goes_on_while_its_token_is_replaced(
    locked: Locked, spark: "SparkSession", topic: str, tmp_path: Path
) -> None:
    """Each token lives for less time than the stream: at the driver and at the workers."""
    source, target = locked.topic(topic), locked.topic(f"{topic}-copy")
    file = tmp_path / "renewed.token"
    expected: list[int] = []
    with renewed(file, "copier"):
        renewing = {"token.file": str(file)}
        stream = (
            spark.readStream.format("daybook")
            .options(**{**locked.source(source), **renewing}, startingOffsets="earliest")
            .load()
            .select("key", "value")
        )
        query = (
            stream.writeStream.format("daybook")
            .options(**{**locked.sink(target), **renewing})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        try:
            with (
                locked.client("writer") as client,
                client.create_producer(source) as producer,
            ):
                until = time.monotonic() + 2.5 * LASTS_S
                while time.monotonic() < until:
                    for _ in range(5):
                        producer.send(str(len(expected)).encode())
                        expected.append(len(expected))
                    time.sleep(0.2)
                    assert query.isActive, query.exception()
            query.processAllAvailable()
        finally:
            query.stop()
    assert values(spark, locked.source(target)) == expected
    # The last token has no follower.
    ends = jwt.decode(file.read_text(), options={"verify_signature": False})["exp"]
    time.sleep(max(0.0, ends + 1 - time.time()))
    with pytest.raises(Exception, match="expired"):
        values(spark, {**locked.source(target), "token.file": str(file)})


def test_no_plan_and_no_page_shows_a_token(
    locked: Locked,
    spark: "SparkSession",
    topic: str,
    events: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    full, target = locked.topic(topic), locked.topic(f"{topic}-copy")
    secret = token("copier", 3600)
    hidden = {"token": secret}
    write(spark, {k: v for k, v in {**locked.sink(full), **hidden}.items() if k != "token.file"})
    options = {k: v for k, v in {**locked.source(full), **hidden}.items() if k != "token.file"}
    frame = spark.read.format("daybook").options(**options).load()
    frame.explain(extended=True)
    assert frame.count() == ROWS
    shown = [capfd.readouterr().out, frame._jdf.queryExecution().toString(), repr(frame)]
    spark.sql(
        "CREATE TEMPORARY VIEW locked_view USING daybook OPTIONS ("
        + ", ".join(f"`{name}` '{value}'" for name, value in options.items())
        + ")"
    )
    shown.append(spark.sql("EXPLAIN EXTENDED SELECT * FROM locked_view").collect()[0][0])
    stream = spark.readStream.format("daybook").options(**options, startingOffsets="earliest")
    sink = {k: v for k, v in {**locked.sink(target), **hidden}.items() if k != "token.file"}
    query = (
        stream.load()
        .select("value")
        .writeStream.format("daybook")
        .options(**sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(PATIENCE_S)
        query.explain(extended=True)
        shown.append(str(query.recentProgress))
    finally:
        query.stop()
    with pytest.raises(Exception, match="lacks the right") as caught:
        values(spark, {**options, "token": token("stranger", 3600)})
    shown.append(str(caught.value))
    captured = capfd.readouterr()
    shown += [captured.out, captured.err]
    files = [path for path in (*events.rglob("*"), *tmp_path.rglob("*")) if path.is_file()]
    assert any("locked_view" in path.read_text(errors="replace") for path in files)
    shown += [path.read_text(errors="replace") for path in files]
    for text in shown:
        assert secret not in text
        assert secret.rpartition(".")[2] not in text


# -- pipelines


def filled(locked: Locked, topic: str) -> str:
    full = locked.topic(topic)
    with locked.client("writer") as client, client.create_producer(full) as producer:
        for number in range(100):
            producer.send(str(number).encode(), key=str(number))
    return full


def count(locked: Locked, topic: str) -> int:
    with locked.client("reader") as client:
        return sum(each.next for each in client.offset_ranges(topic))


def test_a_copy_with_produce_and_consume_alone(
    locked: Locked, spark: "SparkSession", topic: str, tmp_path: Path
) -> None:
    source, target = filled(locked, topic), locked.topic(f"{topic}-copy")
    copy = ("pipeline", "copy", source, target, "--checkpoint", str(tmp_path / "c"))
    done = locked.json(*copy, "--context", "copier", spark=spark)
    assert (done["written"], count(locked, target)) == (100, 100)
    new = ("pipeline", "copy", source, f"{target}-new", "--checkpoint", str(tmp_path / "n"))
    refused = locked.run(*new, "--context", "copier", spark=spark)
    assert refused.returncode == 1
    assert "the role 'copier' lacks the right 'tenant admin'" in refused.stderr


@pytest.mark.parametrize(
    ("role", "right"),
    [
        ("writer", "'consume'"),
        ("reader", "'produce'"),
        ("stranger", "produce or consume"),
        ("nobody", ""),
    ],
)
def test_a_copy_of_the_wrong_role(
    locked: Locked, spark: "SparkSession", topic: str, tmp_path: Path, role: str, right: str
) -> None:
    source, target = filled(locked, topic), locked.topic(f"{topic}-copy")
    copy = ("pipeline", "copy", source, target, "--checkpoint", str(tmp_path / "c"))
    refused = locked.run(*copy, "--context", role, spark=spark)
    assert refused.returncode == 1, refused.stdout
    if role == "nobody":
        assert "credentials" in refused.stderr
    else:
        assert f"the role '{role}' lacks the right" in refused.stderr
        assert right in refused.stderr
    assert count(locked, target) == 0


def test_a_configured_pipeline_names_its_token_files(
    locked: Locked, spark: "SparkSession", topic: str, tmp_path: Path
) -> None:
    source, target = filled(locked, topic), locked.topic(f"{topic}-out")
    for role in ("reader", "writer"):
        (tmp_path / f"{role}.token").write_text(token(role))
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f"""
        name = "{topic}"
        checkpoint = "checkpoint"
        [source]
        service.url = "{locked.cluster.service_url}"
        topic = "{source}"
        token.file = "reader.token"
        [sink]
        service.url = "{locked.cluster.service_url}"
        admin.url = "{locked.cluster.admin_url}"
        topic = "{target}"
        token.file = "writer.token"
        """
    )
    run = ("pipeline", "run", str(file), "--available-now")
    assert locked.json(*run, spark=spark)["written"] == 100
    assert count(locked, target) == 100
    (tmp_path / "writer.token").write_text(token("reader"))
    with locked.client("writer") as client, client.create_producer(source) as producer:
        producer.send(b"one more")
    refused = locked.run(*run, spark=spark)
    assert refused.returncode == 1
    assert "the role 'reader' lacks the right 'produce'" in refused.stderr
    assert count(locked, target) == 100


def test_an_archive_and_its_replay(
    locked: Locked, spark: "SparkSession", topic: str, tmp_path: Path
) -> None:
    source, target = filled(locked, topic), locked.topic(f"{topic}-again")
    there = str(tmp_path / "archive")
    archive = ("pipeline", "archive", source, there)
    rows = locked.json(*archive, "--context", "reader", spark=spark)
    assert sum(row["rows"] for row in rows) == 100
    refused = locked.run(*archive, "--context", "writer", spark=spark)
    assert "the role 'writer' lacks the right 'consume'" in refused.stderr
    replay = ("pipeline", "replay", there, target)
    refused = locked.run(*replay, "--context", "reader", spark=spark)
    assert refused.returncode == 1
    assert "the role 'reader' lacks the right" in refused.stderr
    assert count(locked, target) == 0
    locked.json(*replay, "--context", "copier", spark=spark)
    assert count(locked, target) == 100


# -- the command line


def test_a_password_and_a_token_from_a_context(locked: Locked, topic: str) -> None:
    full = locked.topic(topic)
    (locked.directory / "lines").write_text("one\ntwo\n")
    for context in ("ben", "writer"):
        sent = locked.run("produce", full, "lines", "--context", context)
        assert sent.returncode == 0, sent.stderr
    refused = locked.run("produce", full, "lines", "--context", "reader")
    assert "the role 'reader' lacks the right 'produce'" in refused.stderr
    assert "The context 'reader' has this address." in refused.stderr
    basic = ("--basic-user", "ben", "--basic-password-file", locked.password)
    assert locked.run("topics", "stats", full, *basic).returncode == 0
    assert "credentials" in locked.run("topics", "stats", full).stderr
    assert count(locked, full) == 4


def test_rights_are_granted_listed_and_revoked(locked: Locked, topic: str) -> None:
    full = locked.topic(topic)
    (locked.directory / "lines").write_text("one\ntwo\n")
    produce = ("produce", full, "lines", "--token-file", locked.file("guest"))
    on_topic = ("--topic", full, "--context", "owner")

    def rights() -> dict[str, list[str]]:
        rows = locked.json("permissions", "list", *on_topic)
        return {row["role"]: row["actions"] for row in rows}

    grant = ("permissions", "grant", "guest", "produce", *on_topic)
    assert locked.json(*grant, "--dry-run")["state"] == "would be granted"
    assert "guest" not in rights()
    assert "the role 'guest' lacks the right 'produce or consume" in locked.run(*produce).stderr
    assert locked.json(*grant)["state"] == "granted"
    assert rights() == {**GRANTS, "guest": ["produce"]}
    assert locked.run(*produce).returncode == 0
    revoke = ("permissions", "revoke", "guest", *on_topic)
    assert locked.json(*revoke, "--dry-run")["before"] == ["produce"]
    refused = locked.run(*revoke)
    assert "Nothing was changed" in refused.stderr
    assert rights()["guest"] == ["produce"]
    assert locked.json(*revoke, "--yes")["state"] == "revoked"
    assert "guest" not in rights()
    assert "the role 'guest' lacks the right" in locked.run(*produce).stderr
    stranger = ("permissions", "grant", "guest", "produce", "--topic", full)
    denied = locked.run(*stranger, "--context", "reader")
    assert "the role 'reader' lacks the right 'tenant admin'" in denied.stderr


def test_rights_on_subscriptions(locked: Locked, topic: str) -> None:
    full = locked.topic(topic)
    name = f"{topic}-s"
    place = ("--namespace", NAMESPACE, "--subscription", name, "--context", "owner")
    locked.json("permissions", "grant", "copier", *place)
    assert [row["role"] for row in locked.json("permissions", "list", *place)] == ["copier"]
    with locked.client("reader") as client, pytest.raises(Exception, match="lacks the right"):
        client.subscribe(full, name)
    locked.json("permissions", "grant", "reader", *place)
    with locked.client("reader") as client:
        client.subscribe(full, name).close()
    revoked = locked.json("permissions", "revoke", "copier", "--yes", *place)
    assert revoked["state"] == "revoked"
    assert "note" in locked.json("permissions", "revoke", "reader", "--yes", *place)
    assert locked.json("permissions", "list", *place) == []


def test_admins_of_tenants(locked: Locked) -> None:
    admins = ("tenants", "admins", "shop", "--context", "admin")
    assert locked.json(*admins)["admins"] == ["owner"]
    assert locked.json(*admins, "--add", "second", "--dry-run")["admins"] == ["owner", "second"]
    assert locked.json(*admins)["admins"] == ["owner"]
    assert locked.json(*admins, "--add", "second")["admins"] == ["owner", "second"]
    with locked.admin("second") as second:
        assert NAMESPACE in second.namespaces("shop")
    assert locked.json(*admins, "--remove", "second", "--yes")["admins"] == ["owner"]
    assert locked.json("permissions", "list", "--namespace", NAMESPACE, "--context", "owner")
    denied = locked.run("tenants", "admins", "shop", "--add", "x", "--context", "owner")
    assert "the role 'owner' lacks the right 'super user'" in denied.stderr


# -- the doctor


def look(locked: Locked, *words: str) -> dict[str, dict[str, Any]]:
    done = locked.run("doctor", "--output", "json", *words)
    assert done.returncode in (0, 1, 2), done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)}


def is_well(checks: dict[str, dict[str, Any]]) -> bool:
    """Return True if all is ok; a session may have been lost because the machine is busy."""
    return all(check["verdict"] == "ok" for name, check in checks.items() if name != "sessions")


NEED_A_SUPER_USER = {
    *("sinks", "waiting topics", "lists of ledgers", "Spark subscriptions", "subscriptions"),
    *("retention", "topics looked at", "bookies"),
}


def test_the_doctor_sees_everything_as_a_super_user(locked: Locked) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        checks = look(locked, "--context", "admin")
        if is_well(checks):
            return
        assert time.monotonic() < deadline, checks


@pytest.mark.parametrize(
    ("context", "why"),
    [
        ("reader", "the role 'reader' lacks the right 'super user' on the cluster"),
        ("owner", "the role 'owner' lacks the right 'super user' on the cluster"),
        ("nobody", "credentials"),
    ],
)
def test_the_doctor_says_what_it_may_not_know(locked: Locked, context: str, why: str) -> None:
    """The brokers tell nobody else who is registered, so ZooKeeper does."""
    checks = look(locked, "--context", context)
    for name in NEED_A_SUPER_USER:
        assert checks[name]["verdict"] == "unknown", checks[name]
        assert why in checks[name]["sentence"], checks[name]
        assert "--token-file" in checks[name]["remedy"]
    without = look(
        locked, "--admin-url", locked.cluster.admin_url, "--token-file", locked.file("stranger")
    )
    told = "the role 'stranger' lacks the right 'super user'"
    known = {name for name, check in without.items() if check["verdict"] != "unknown"}
    assert known == set(), "without ZooKeeper, nothing is known"
    for name, check in without.items():
        assert told in check["sentence"], name


def test_the_doctor_over_tls_and_with_a_token(
    locked: Locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that have ports with TLS alone."""
    authority = Authority(tmp_path)
    environ = {**LOCKED, "BROKER_TOKEN_FILE": str(locked.directory / "broker.token")}
    environ["BASIC_FILE"] = str(locked.directory / "users")
    for name, value in environ.items():
        monkeypatch.setenv(f"DAYBOOK_BROKER_{name}", value)
    with StandaloneProcess(directory=tmp_path / "data", brokers=1, options=ANY_PORTS) as cluster:
        cluster.local("kill", "broker-1")
        brokers: list[ServerProcess] = []
        try:
            for index in range(2):
                issued = authority.issue(f"broker-{index}")
                settings = {"tls_certificate": issued.certificate, "tls_key": issued.key}
                brokers.append(_broker_with_tls(tmp_path, index, cluster, authority, settings))
            ports = [str(each.read_ready().ready["https_port"]) for each in brokers]
            _look_over_tls(locked, cluster, authority, ports)
        finally:
            for each in brokers:
                each.kill()


def _broker_with_tls(
    directory: Path,
    index: int,
    cluster: StandaloneProcess,
    authority: Authority,
    settings: dict[str, Any],
) -> ServerProcess:
    return ServerProcess.broker(
        directory / f"broker-{index}.log",
        zookeeper=cluster.zookeeper,
        port=-1,
        http_port=-1,
        tls_port=0,
        https_port=0,
        tls_trusted=authority.trusted,
        **settings,
    )


def _look_over_tls(
    locked: Locked, cluster: StandaloneProcess, authority: Authority, ports: list[str]
) -> None:
    url = "https://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    tls = ("--tls-trusted", str(authority.trusted))
    who = ("--token-file", locked.file("admin"))

    def until_well(*words: str) -> None:
        """The broker that was killed is registered until its session has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            checks = look(locked, *words)
            if is_well(checks):
                sentence = checks["brokers"]["sentence"]
                assert sentence == "Every registered broker answers and is ready (2)."
                return
            assert time.monotonic() < deadline, checks

    until_well("--admin-url", url, *tls, *who)
    until_well("--zookeeper", cluster.zookeeper, *tls, *who)
    one = f"https://127.0.0.1:{ports[0]}"
    until_well("--admin-url", one, *tls, *who)
    untrusted = locked.run("doctor", "--admin-url", url, *who)
    assert untrusted.returncode == 2
    assert "is signed by nobody whom this" in untrusted.stdout
    denied = look(locked, "--admin-url", url, *tls, "--token-file", locked.file("stranger"))
    assert "the role 'stranger' lacks the right" in denied["sinks"]["sentence"]
    with blocking.connect_admin(
        url, tls=TlsOptions(trusted=authority.trusted), basic=PasswordFile("ben", locked.password)
    ) as admin:
        assert admin.clusters()


# -- nothing shows


def test_no_log_and_no_file_of_contexts_has_a_secret(locked: Locked) -> None:
    """This test comes last, when the logs have everything that the others caused."""
    logs = sorted((locked.cluster.directory / "logs").iterdir())
    kept = locked.directory / "config/daybook/contexts.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    text = "".join(path.read_text() for path in (*logs, kept))
    found = [PASSWORD, token("broker")]
    found += [path.read_text() for path in locked.directory.glob("*.token")]
    assert len(found) > len(GRANTS)
    for secret in found:
        assert secret.strip() not in text
