"""Bookies and ZooKeeper of `daybook standalone --secure`: who gets in, and who does not."""

import json
import os
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from daybook.clients import ledgers
from daybook.clients.cli.authority import CERTIFICATE_LIFE, Authority, time_of
from daybook.clients.cli.secure import Security, names_for
from daybook.clients.ledgers import BookieAccess, ZooKeeperOptions
from daybook.clients.python import blocking
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from daybook.wire.clock import SystemClock
from tests.harness import processes
from tests.harness.certificates import Authority as OtherAuthority
from tests.harness.processes import wait_until
from tests.real.commands import run_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("standalone-storage")]

PATIENCE_S = 180
SHORT_S = 5.0  # a stranger who is let in is let in at once
STRANGERS = ["plain", "no certificate", "another authority", "an unknown name"]
ROWS = 200


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    directory = tmp_path_factory.mktemp("storage")
    with StandaloneProcess(directory=directory, secure=True, options=ANY_PORTS) as running:
        yield running


def insider(cluster: StandaloneProcess) -> TlsOptions:
    assert cluster.storage_tls is not None
    return cluster.storage_tls


def stranger(cluster: StandaloneProcess, kind: str, directory: Path) -> TlsOptions | None:
    """Return the TLS of somebody who may not enter; None: he has none."""
    trusted = cluster.ready["trusted"]
    if kind == "plain":
        return None
    if kind == "no certificate":
        return TlsOptions(trusted)
    if kind == "another authority":
        issued = OtherAuthority(directory).issue("daybook")
        return TlsOptions(trusted, issued.certificate, issued.key)
    folder = cluster.directory / "security"
    clock = SystemClock()
    authority = Authority.load(folder / "authority.pem", folder / "authority.key", time_of(clock))
    made = authority.issue_to_client("somebody", CERTIFICATE_LIFE, time_of(clock))
    file = directory / "somebody.pem"
    file.write_bytes(made.certificate + made.key)
    return TlsOptions(trusted, file, file)


def access(tls: TlsOptions | None) -> BookieAccess | None:
    return None if tls is None else BookieAccess(True, tls.trusted, tls.certificate, tls.key)


def store(
    cluster: StandaloneProcess,
    zookeeper: TlsOptions | None,
    bookies: TlsOptions | None,
    *,
    connect_timeout_s: float = SHORT_S,
) -> ledgers.blocking.Client:
    return ledgers.blocking.connect(
        f"zk://{cluster.zookeeper}/ledgers",
        connect_timeout_s=connect_timeout_s,
        zookeeper=None if zookeeper is None else ZooKeeperOptions(zookeeper),
        bookie_access=access(bookies),
    )


def written(cluster: StandaloneProcess) -> int:
    """Write a ledger with two entries, and return its id."""
    with store(cluster, insider(cluster), insider(cluster)) as client, client.create() as writer:
        for entry in (b"one", b"two"):
            writer.append(entry, timeout_s=PATIENCE_S)
        return writer.ledger_id


def content(cluster: StandaloneProcess, ledger: int) -> list[bytes]:
    with store(cluster, insider(cluster), insider(cluster)) as client:
        return [
            bytes(entry.data)
            for entry in client.open(ledger, recover=False).read(timeout_s=PATIENCE_S)
        ]


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_reads_and_writes_nothing_at_bookies(
    secure: StandaloneProcess, kind: str, tmp_path: Path
) -> None:
    """He has found out from ZooKeeper where they are, and which passwords ledgers have."""
    ledger = written(secure)
    with store(secure, insider(secure), stranger(secure, kind, tmp_path)) as client:
        with pytest.raises((ledgers.LedgerError, TimeoutError)):
            list(client.open(ledger, recover=False, patience_s=1).read(timeout_s=SHORT_S))
        with pytest.raises((ledgers.LedgerError, TimeoutError)):
            client.create().append(b"x", timeout_s=SHORT_S)
    assert content(secure, ledger) == [b"one", b"two"]


@pytest.mark.parametrize("kind", STRANGERS[:-1])
def test_a_stranger_does_not_get_into_zookeeper(
    secure: StandaloneProcess, kind: str, tmp_path: Path
) -> None:
    """The client asks again until its time is over."""
    who = stranger(secure, kind, tmp_path)
    with (
        pytest.raises(ledgers.MetadataUnavailableError),
        store(secure, who, insider(secure), connect_timeout_s=2.0) as client,
    ):
        client.create()


def answer(address: str, question: bytes, context: ssl.SSLContext | None) -> bytes:
    """Return the first bytes that a port answers, b"" if it hangs up."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        if context is None:
            sock.sendall(question)
            return sock.recv(100)
        with context.wrap_socket(sock, server_hostname=host) as tls:
            tls.sendall(question)
            return tls.recv(100)


def context_of(cluster: StandaloneProcess, *, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cluster.ready["trusted"])
    if certificate:
        context.load_cert_chain(cluster.ready["certificate"])
    return context


def test_the_port_of_zookeeper_answers_those_with_a_certificate_alone(
    secure: StandaloneProcess,
) -> None:
    known = context_of(secure, certificate=True)
    assert answer(secure.zookeeper, b"srvr", known).startswith(b"Zookeeper version")
    # Four bytes are less than the head of a record of TLS, whose rest the server awaits for long.
    assert b"Zookeeper" not in answer(secure.zookeeper, b"srvr\n\n\n\n", None)
    with pytest.raises(OSError, match=r"(?i)certificate|reset|eof"):
        answer(secure.zookeeper, b"srvr", context_of(secure, certificate=False))


def test_the_http_of_bookies_asks_for_a_certificate(secure: StandaloneProcess) -> None:
    for bookie in secure.ready["bookies"]:
        url = bookie["http_url"] + "/healthz"
        known = context_of(secure, certificate=True)
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=known) as found:
            assert found.status == 200
        with pytest.raises(OSError, match=r"(?i)certificate|reset|eof|closed"):
            urllib.request.urlopen(
                url, timeout=PATIENCE_S, context=context_of(secure, certificate=False)
            )
        with pytest.raises(OSError, match=r"(?i)reset|closed|aborted|remote end|bad request"):
            urllib.request.urlopen(url.replace("https", "http"), timeout=PATIENCE_S)


def run(cluster: StandaloneProcess, *words: str, exit_codes: tuple[int, ...] = (0,)) -> str:
    """Run a command that knows the directory and nothing else."""
    unset = {name: None for name in os.environ if name.startswith("DAYBOOK_")}
    done = run_here(*words, environ={**unset, "DAYBOOK_DIR": str(cluster.directory)})
    assert done.returncode in exit_codes, done.stdout + done.stderr
    return done.stdout


def test_commands_find_bookies_and_zookeeper_with_the_directory(
    secure: StandaloneProcess,
) -> None:
    ledger = written(secure)
    rows = json.loads(run(secure, "bookies", "health", "--output", "json"))
    assert [row["answers"] for row in rows] == [True] * 3
    rows = json.loads(run(secure, "bookies", "list", "--output", "json"))
    assert {row["http"] for row in rows} == {b["http_url"] for b in secure.ready["bookies"]}
    assert "one" in run(secure, "ledgers", "read", str(ledger))
    run(secure, "ledgers", "check", "--read", str(ledger))
    run(secure, "cluster", "show")
    run(secure, "autorecovery", "trigger")
    run(secure, "local", "status", "--dir", str(secure.directory))


def test_the_doctor_asks_bookies_with_the_certificate(secure: StandaloneProcess) -> None:
    """Ledgers of strangers may still lack copies, so `copies` is not looked at."""
    with blocking.connect(secure.service_url, tls=secure.tls, token=secure.token) as client:
        client.create_producer("looked-at").send(b"x")
    checks = json.loads(run(secure, "doctor", "--output", "json", exit_codes=(0, 1, 2)))
    found = {check["name"]: check for check in checks}
    # Only a bookie that has let the command in tells how full it is.
    assert "Every bookie has room" in found["disks"]["sentence"]
    del found["copies"], found["sessions"]  # The machine may be too busy for a session.
    assert {check["verdict"] for check in found.values()} == {"ok"}, found


def test_the_variables_let_commands_in_elsewhere(secure: StandaloneProcess, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DAYBOOK_")}
    words = [*processes.DAYBOOK, "bookies", "health", "--output", "json"]
    done = subprocess.run(
        ["sh", "-c", '. "$0" && exec "$@"', secure.ready["environment"], *words],
        env=clean | {"PYTHONPATH": str(processes.ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [row["answers"] for row in json.loads(done.stdout)] == [True] * 3
    assert "is ignored" not in done.stderr


def test_a_context_lets_commands_in_elsewhere(secure: StandaloneProcess, tmp_path: Path) -> None:
    unset = {name: None for name in os.environ if name.startswith("DAYBOOK_")}
    environ = {**unset, "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def elsewhere(*words: str) -> str:
        done = run_here(*words, environ=environ, directory=tmp_path)
        assert done.returncode in (0, 1, 2), done.stdout + done.stderr
        return done.stdout

    folder, admin = secure.directory / "security", secure.directory / "security" / "admin.pem"
    elsewhere(
        *("context", "add", "boss", "--use", "--service-url", secure.service_url),
        *("--admin-url", secure.admin_url, "--zookeeper", secure.zookeeper),
        *("--tls-trusted", str(folder / "authority.pem"), "--tls-certificate", str(admin)),
        *("--tls-key", str(admin), "--token-file", str(folder / "admin.token")),
        *("--zookeeper-tls", "--bookie-tls"),
    )
    rows = json.loads(elsewhere("bookies", "health", "--output", "json"))
    assert [row["answers"] for row in rows] == [True] * 3
    found = {each["name"]: each for each in json.loads(elsewhere("doctor", "--output", "json"))}
    assert "Every bookie has room" in found["disks"]["sentence"]
    assert {found[name]["verdict"] for name in ("brokers", "metadata store", "token files")} == {
        "ok"
    }


def test_bookies_restore_copies_over_tls(secure: StandaloneProcess) -> None:
    """Auto-recovery connects to other bookies, and to ZooKeeper, as the processes do."""
    with store(secure, insider(secure), insider(secure)) as client:
        with client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            writer.append(b"copied", timeout_s=PATIENCE_S)
        victim = client.metadata(writer.ledger_id).last_fragment.ensemble[0]
    (name,) = [part["name"] for part in secure.parts() if part["address"] == victim]
    secure.local("kill", name)

    def is_copied() -> bool:
        run(secure, "autorecovery", "trigger")
        with store(secure, insider(secure), insider(secure)) as client:
            return victim not in client.metadata(writer.ledger_id).last_fragment.ensemble

    try:
        wait_until(is_copied, "another bookie has the copy")
    finally:
        secure.local("start", name)
    assert content(secure, writer.ledger_id) == [b"copied"]


def test_new_certificates_of_bookies_count_without_a_restart(secure: StandaloneProcess) -> None:
    ledger = written(secure)
    folder = secure.directory / "security"
    before = {name: (folder / name).read_bytes() for name in ("server.pem", "admin.pem")}
    (folder / "admin.pem").unlink()
    wider = Security(folder, names_for((), ("renewed.example",)), storage=True)
    renewed = wider.renew(SystemClock())
    assert [file.name for file in renewed] == ["server.pem", "admin.pem"]
    assert all((folder / name).read_bytes() != old for name, old in before.items())
    assert content(secure, ledger) == [b"one", b"two"]
    assert content(secure, written(secure)) == [b"one", b"two"]


def test_spark_reads_sealed_ledgers_from_locked_bookies(
    secure: StandaloneProcess, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = "persistent://public/default/for-spark"
    with (
        blocking.connect(secure.service_url, tls=secure.tls, token=secure.token) as client,
        client.create_producer(topic) as producer,
    ):
        for number in range(ROWS):
            producer.send(str(number).encode())
    with blocking.connect_admin(secure.admin_url, tls=secure.tls, token=secure.token) as admin:
        admin.unload_topic(topic)  # seals its ledger
    tls = insider(secure)
    options = {
        "service.url": secure.service_url,
        "token.file": secure.ready["token_file"],
        "topic": topic,
        "read": "bookies",
        "tls.trusted": str(tls.trusted),
        "tls.certificate": str(tls.certificate),
        "tls.key": str(tls.key),
        "bookie.tls": "true",
        "zookeeper.tls": "true",
    }

    def values(options: dict[str, str]) -> list[int]:
        frame = spark.read.format("daybook").options(**options).load().select("value")
        return sorted(int(bytes(row["value"])) for row in frame.collect())

    assert values(options) == list(range(ROWS))
    without = {name: value for name, value in options.items() if not name.startswith("tls.cert")}
    del without["tls.key"]
    with pytest.raises(Exception, match=r"(?i)bookie|ZooKeeper"):
        values(without)
    # A job that has only a token reads through the brokers.
    for name in ("bookie.tls", "zookeeper.tls"):
        del without[name]
    assert values({**without, "read": "auto"}) == list(range(ROWS))
    assert values({**without, "read": "brokers"}) == list(range(ROWS))


def test_a_locked_cluster_starts_again_and_can_be_opened(tmp_path: Path) -> None:
    options: dict[str, Any] = {"directory": tmp_path, "bookies": 1, "brokers": 1}
    with StandaloneProcess(**options, secure=True, options=ANY_PORTS) as first:
        ledger = written_alone(first)
        assert first.ready["locked"] == ["brokers", "bookies", "zookeeper"]
    with StandaloneProcess(**options) as again:
        assert again.ready["locked"] == ["brokers", "bookies", "zookeeper"]
        assert content(again, ledger) == [b"kept"]
        again.local("kill", "zookeeper")
        again.local("start", "zookeeper")
        assert content(again, ledger) == [b"kept"]
    with StandaloneProcess(**options, options=("--insecure",)) as opened:
        assert opened.storage_tls is None
        with store(opened, None, None) as client:
            assert [bytes(e.data) for e in client.open(ledger, recover=False).read()] == [b"kept"]
    with StandaloneProcess(**options, secure=True) as locked:
        assert content(locked, ledger) == [b"kept"]


def written_alone(cluster: StandaloneProcess) -> int:
    with (
        store(cluster, insider(cluster), insider(cluster)) as client,
        client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        writer.append(b"kept", timeout_s=PATIENCE_S)
        return writer.ledger_id


def test_a_directory_whose_brokers_alone_are_locked_goes_on_and_is_locked_on_request(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where: dict[str, Any] = {"directory": tmp_path, "bookies": 1, "brokers": 1}
    StandaloneProcess(**where, options=ANY_PORTS, secure=True).stop()
    state = tmp_path / "standalone.json"
    older = json.loads(state.read_text())
    del older["locked"]
    state.write_text(json.dumps({**older, "version": 2}))
    for name in ("zookeeper.pem", "admin.pem"):
        (tmp_path / "security" / name).unlink()
    # As a user starts it whose script says --secure, and as another one.
    for secure in (True, False):
        capfd.readouterr()
        with StandaloneProcess(**where, secure=secure) as before:
            assert before.ready["secure"]
            assert before.ready["locked"] == ["brokers"]
            assert before.storage_tls is None
            assert answer(before.zookeeper, b"srvr", None).startswith(b"Zookeeper version")
            with (
                blocking.connect(before.service_url, tls=before.tls, token=before.token) as client,
                client.create_producer("t") as producer,
            ):
                producer.send(b"x")
        said = capfd.readouterr().err
        assert "ask nobody who they are" in said
        assert "a start with --lock-storage locks them" in said
    with StandaloneProcess(**where, options=("--lock-storage",)) as locked:
        assert locked.ready["locked"] == ["brokers", "bookies", "zookeeper"]
        with (
            blocking.connect(locked.service_url, tls=locked.tls, token=locked.token) as client,
            client.create_reader("t", start="earliest") as reader,
        ):
            assert reader.receive(timeout_s=PATIENCE_S).data == b"x"
            assert b"Zookeeper" not in answer(locked.zookeeper, b"srvr", None)
    with StandaloneProcess(**where) as again:
        assert again.ready["locked"] == ["brokers", "bookies", "zookeeper"]
    assert "ask nobody" not in capfd.readouterr().err
