"""Brokers whose ports all have TLS, as processes: both clients, and new certificates."""

import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

import daybook
from daybook.clients.python import blocking
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.certificates import Authority, Issued
from tests.harness.processes import ServerProcess, end, wait_until
from tests.harness.processes import daybook as run_daybook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("tls")]

PATIENCE_S = 120  # the machine may be busy with other work
TIMEOUT_MS = PATIENCE_S * 1000
TOPICS = 6


@dataclass
class Secure:
    """ZooKeeper and bookies, and two brokers without any port that has no TLS."""

    directory: Path
    authority: Authority
    zookeeper: str
    brokers: list[ServerProcess]
    certificates: list[Issued]

    def start(self, name: str, **settings: Any) -> ServerProcess:
        common: dict[str, Any] = {
            "zookeeper": self.zookeeper,
            "port": -1,
            "http_port": -1,
            "tls_port": 0,
            "https_port": 0,
            "tls_trusted": self.authority.trusted,
            "tls_client_certificates": "optional",
        }
        return ServerProcess.broker(self.directory / f"{name}.log", **{**common, **settings})

    @property
    def trusted(self) -> str:
        return str(self.authority.trusted)

    @property
    def options(self) -> TlsOptions:
        return TlsOptions(trusted=self.trusted)

    def urls(self, scheme: str) -> list[str]:
        """Return the URL of each broker."""
        port = "tls_port" if scheme == "pulsar+ssl" else "https_port"
        return [f"{scheme}://127.0.0.1:{each.ready[port]}" for each in self.brokers]

    def url(self, scheme: str) -> str:
        """Return one URL that names both brokers."""
        first, second = self.urls(scheme)
        return f"{first},{second.partition('://')[2]}"

    def official(self, url: str = "", **options: Any) -> pulsar.Client:
        return pulsar.Client(
            url or self.url("pulsar+ssl"),
            tls_trust_certs_file_path=options.pop("trusted", self.trusted),
            tls_validate_hostname=options.pop("validate", True),
            operation_timeout_seconds=options.pop("timeout", PATIENCE_S),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            **options,
        )


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    with StandaloneProcess(directory=directory / "data", brokers=1, options=ANY_PORTS) as cluster:
        cluster.local("kill", "broker-1")
        certificates = [authority.issue(f"broker-{index}") for index in range(2)]
        made = Secure(directory, authority, cluster.zookeeper, [], certificates)
        try:
            for index, issued in enumerate(certificates):
                settings = {"tls_certificate": issued.certificate, "tls_key": issued.key}
                made.brokers.append(made.start(f"broker-{index}", **settings))
            for process in made.brokers:
                process.read_ready()
            yield made
        finally:
            for process in made.brokers:
                process.kill()


def _exchange(client: pulsar.Client, prefix: str) -> None:
    """Send and receive on several topics, which both brokers serve."""
    for index in range(TOPICS):
        topic = f"{prefix}-{index}"
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        bodies = [bytes([number]) * (number * 20_000) for number in range(1, 6)]
        for body in bodies:
            producer.send(body)
        for body in bodies:
            message = consumer.receive(TIMEOUT_MS)
            assert message.data() == body
            consumer.acknowledge(message)


def test_the_official_client(secure: Secure) -> None:
    for process in secure.brokers:
        assert process.ready["port"] is None
        assert process.ready["service_url"] is None
        assert process.ready["admin_url"] is None
    client = secure.official()
    _exchange(client, "official")
    client.close()


def test_the_official_client_with_lookups_over_https(secure: Secure) -> None:
    client = secure.official(secure.url("https").partition(",")[0])
    _exchange(client, "https")
    client.close()


def test_the_official_client_with_a_certificate(secure: Secure) -> None:
    alice = secure.authority.issue("alice", hosts=())
    certificate = pulsar.AuthenticationTLS(str(alice.certificate), str(alice.key))
    client = secure.official(authentication=certificate)
    _exchange(client, "mutual")
    client.close()


def test_the_official_client_refuses_another_authority_and_another_host(secure: Secure) -> None:
    stranger = Authority(secure.directory, "stranger")
    with_wrong_authority = secure.official(trusted=str(stranger.trusted), timeout=3)
    with pytest.raises(pulsar.PulsarException):
        with_wrong_authority.create_producer("refused")
    with_wrong_authority.close()
    certificate = secure.authority.issue("elsewhere", hosts=("elsewhere",))
    # A broker that knew the authority would not start: other brokers could not reach it.
    elsewhere = secure.start(
        "elsewhere",
        tls_certificate=certificate.certificate,
        tls_key=certificate.key,
        tls_trusted="",
        tls_client_certificates="off",
    )
    try:
        url = f"pulsar+ssl://127.0.0.1:{elsewhere.read_ready().ready['tls_port']}"
        wrong_host = secure.official(url, timeout=3)
        with pytest.raises(pulsar.PulsarException):
            wrong_host.get_topic_partitions("refused")
        wrong_host.close()
        unchecked = secure.official(url, validate=False)
        assert unchecked.get_topic_partitions("accepted")
        unchecked.close()
        with pytest.raises(daybook.TlsError, match=r"is not made out to 127\.0\.0\.1"):
            blocking.connect(url, tls=secure.options)
        blocking.connect(url, tls=TlsOptions(trusted=secure.trusted, verify_host=False)).close()
    finally:
        end(elsewhere.process, signal.SIGTERM)


def test_our_client_administration_and_command_line(secure: Secure) -> None:
    with blocking.connect_admin(secure.url("https"), tls=secure.options) as admin:
        admin.create_topic("ours", partitions=4)
        assert len(admin.brokers()) == 2
        assert admin.leader_broker()["serviceUrl"].startswith("https://")
        # Both brokers own partitions, so each of these is redirected or forwarded.
        for partition in range(4):
            admin.create_subscription(f"ours-partition-{partition}", "early")
        assert admin.stats("ours")["partitions"]
    with (
        blocking.connect(secure.url("pulsar+ssl"), tls=secure.options) as client,
        client.create_producer("ours") as producer,
        client.subscribe("ours", "s", initial_position="earliest") as consumer,
    ):
        bodies = [b"%d" % number for number in range(100)]
        for body in bodies:
            producer.send(body)
        assert sorted(consumer.receive(PATIENCE_S).data or b"" for _ in bodies) == sorted(bodies)
    with pytest.raises(daybook.TlsError, match="nobody whom this client trusts"):
        blocking.connect(secure.url("pulsar+ssl"))
    environ = {
        **os.environ,
        "DAYBOOK_SERVICE_URL": secure.url("pulsar+ssl"),
        "DAYBOOK_ADMIN_URL": secure.url("https"),
        "DAYBOOK_TLS_TRUSTED": secure.trusted,
    }
    shown = run_daybook("consume", "ours", "--from", "earliest", "-n", "100", environ=environ)
    assert sorted(shown.stdout.split()) == sorted(body.decode() for body in bodies), shown.stderr
    for words in (("topics", "stats", "ours"), ("brokers", "decisions"), ("topics", "list")):
        done = run_daybook(*words, environ=environ)
        assert done.returncode == 0, done.stderr
    refused = run_daybook("topics", "list", environ={**environ, "DAYBOOK_TLS_TRUSTED": ""})
    assert refused.returncode != 0
    assert "name the file of its authority" in refused.stderr


def _wait_for_trust(secure: Secure, options: TlsOptions) -> None:
    """Wait until each broker shows a certificate that a client with these options trusts."""

    def connects(url: str) -> bool:
        try:
            blocking.connect(url, tls=options).close()
        except daybook.TlsError:
            return False
        return True

    for url in secure.urls("pulsar+ssl"):
        wait_until(lambda url=url: connects(url), "the new certificate is in force")  # type: ignore[misc]


def test_a_new_certificate_and_authority_need_no_restart(secure: Secure) -> None:
    with (
        blocking.connect(secure.url("pulsar+ssl"), tls=secure.options) as client,
        client.create_producer("renewed") as producer,
    ):
        producer.send(b"before")
        other = Authority(secure.directory, "other")
        old = [
            (issued.certificate.read_bytes(), issued.key.read_bytes())
            for issued in secure.certificates
        ]
        try:
            for index, issued in enumerate(secure.certificates):
                new = other.issue(f"new-{index}")
                new.certificate.replace(issued.certificate)
                new.key.replace(issued.key)
            renewed = TlsOptions(trusted=other.trusted)
            _wait_for_trust(secure, renewed)
            producer.send(b"behind")  # The connection from before has stayed.
            for url in secure.urls("pulsar+ssl"):
                with pytest.raises(daybook.TlsError):
                    blocking.connect(url, tls=secure.options)
        finally:
            for issued, (certificate, key) in zip(secure.certificates, old, strict=True):
                issued.certificate.write_bytes(certificate)
                issued.key.write_bytes(key)

    _wait_for_trust(secure, secure.options)


def test_health_over_https(secure: Secure) -> None:
    trusting = ssl.create_default_context(cafile=secure.trusted)
    for process in secure.brokers:
        url = f"https://localhost:{process.ready['https_port']}/admin/v2/brokers/health"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=trusting) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tls_certificate": "none.pem"}, "the certificate none.pem cannot be read"),
        ({"tls_key": "other"}, "does not belong to the certificate"),
        ({"tls_key": "locked"}, "is encrypted, and nobody can type its password here"),
    ],
)
def test_a_broker_that_cannot_start_says_why_in_a_sentence(
    tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    authority = Authority(tmp_path)
    issued, other = authority.issue("broker"), authority.issue("other")
    locked = authority.issue("locked", password=b"secret")
    keys = {"other": other.key, "locked": locked.key}
    certificate = locked.certificate if "locked" in settings.values() else issued.certificate
    values: dict[str, object] = {
        "tls_port": 0,
        "port": -1,
        "http_port": -1,
        "tls_certificate": certificate,
        "tls_key": issued.key,
        **{name: keys.get(value, value) for name, value in settings.items()},
    }
    environ = {f"DAYBOOK_BROKER_{name.upper()}": str(value) for name, value in values.items()}
    done = subprocess.run(
        [sys.executable, "-m", "daybook.broker"],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_killed_broker_is_taken_over_with_tls(secure: Secure) -> None:
    with blocking.connect(secure.url("pulsar+ssl"), tls=secure.options) as client:
        producers = [client.create_producer(f"taken-{index}") for index in range(TOPICS)]
        for producer in producers:
            producer.send(b"before")
        secure.brokers[0].kill()
        for producer in producers:
            producer.send(b"after")
        left = f"pulsar+ssl://127.0.0.1:{secure.brokers[1].ready['tls_port']}"
        assert {client.lookup(f"taken-{index}") for index in range(TOPICS)} == {left}


def test_spark_writes_exactly_once_and_reads_with_tls(
    secure: Secure, spark: "SparkSession", topic: str, tmp_path: Path
) -> None:
    """The write goes through the https ports, the read through both brokers and the bookies."""
    given = {
        "service.url": secure.url("pulsar+ssl"),
        "tls.trusted": secure.trusted,
        "topic": topic,
    }
    with blocking.connect_admin(secure.url("https"), tls=secure.options) as admin:
        admin.create_topic(topic, partitions=2)
    rows = spark.range(0, 1000).selectExpr("cast(cast(id as string) as binary) value")
    writer = rows.write.format("daybook").options(**given, **{"admin.url": secure.url("https")})
    writer.option("semantics", "exactly-once").mode("append").save()
    for way in ("auto", "brokers"):
        found = spark.read.format("daybook").options(**given, read=way).load()
        values = sorted(int(row["value"]) for row in found.select("value").collect())
        assert values == list(range(1000))
    other = {"tls.trusted": str(Authority(tmp_path).trusted)}
    with pytest.raises(Exception, match="is signed by nobody whom this client trusts"):
        spark.read.format("daybook").options(**given | other).load().count()
