"""`daybook standalone --secure`, with the official client, ours, commands, and strangers."""

import json
import os
import shlex
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from cryptography import x509

import daybook
from daybook.clients.cli.authority import Authority
from daybook.clients.cli.secure import Security, names_for
from daybook.clients.python import blocking
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from daybook.wire.clock import SystemClock
from tests.harness import processes
from tests.harness.certificates import Authority as OtherAuthority
from tests.harness.processes import wait_until
from tests.harness.served import certificate_at

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("standalone-security")]

PATIENCE_S = 120
TIMEOUT_MS = PATIENCE_S * 1000


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    directory = tmp_path_factory.mktemp("secure")
    with StandaloneProcess(directory=directory, secure=True, options=ANY_PORTS) as running:
        yield running


def small(directory: Path, *options: str, secure: bool = False) -> StandaloneProcess:
    """Start one broker and one bookie."""
    return StandaloneProcess(
        directory=directory, bookies=1, brokers=1, options=options, secure=secure
    )


def ours(cluster: StandaloneProcess) -> blocking.Client:
    return blocking.connect(cluster.service_url, tls=cluster.tls, token=cluster.token)


def token_of(cluster: StandaloneProcess) -> str:
    return Path(cluster.ready["token_file"]).read_text().strip()


def official(
    cluster: StandaloneProcess,
    *,
    token: str | None,
    url: str = "",
    trusted: str = "",
    timeout_s: int = 5,
) -> pulsar.Client:
    return pulsar.Client(
        url or cluster.service_url,
        authentication=None if token is None else pulsar.AuthenticationToken(token),
        tls_trust_certs_file_path=trusted or cluster.ready["trusted"],
        tls_validate_hostname=True,
        operation_timeout_seconds=timeout_s,
        connection_timeout_ms=timeout_s * 1000,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def address_of(url: str) -> tuple[str, int]:
    """Return the first address in a URL."""
    found = urlsplit(url.partition(",")[0])
    assert found.hostname is not None
    assert found.port is not None
    return found.hostname, found.port


def served_certificate(cluster: StandaloneProcess) -> x509.Certificate:
    """Return the certificate at the service port of the first broker."""
    return certificate_at(address_of(cluster.service_url), cluster.ready["trusted"])


def asked(cluster: StandaloneProcess, path: str, *, token: str = "", scheme: str = "https") -> int:
    """Return the status of an answer of the REST."""
    host, port = address_of(cluster.admin_url)
    context = ssl.create_default_context(cafile=cluster.ready["trusted"])
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{scheme}://{host}:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_official_client_with_the_printed_credentials(
    secure: StandaloneProcess, topic: str
) -> None:
    client = official(secure, token=token_of(secure), timeout_s=PATIENCE_S)
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(TIMEOUT_MS).data() == b"hello"
    finally:
        client.close()


@pytest.mark.parametrize("stranger", ["nobody", "another token", "another authority", "no TLS"])
def test_a_stranger_is_refused_by_the_official_client(
    secure: StandaloneProcess, topic: str, stranger: str, tmp_path: Path
) -> None:
    token, url, trusted = token_of(secure), "", ""
    if stranger == "nobody":
        client = official(secure, token=None)
    elif stranger == "another token":
        client = official(secure, token=f"{token[:-4]}AAAA")
    else:
        if stranger == "another authority":
            trusted = str(OtherAuthority(tmp_path).trusted)
        else:
            url = secure.service_url.replace("pulsar+ssl://", "pulsar://")
        client = official(secure, token=token, url=url, trusted=trusted)
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
    finally:
        client.close()


def test_strangers_are_told_why(secure: StandaloneProcess, topic: str, tmp_path: Path) -> None:
    with (
        pytest.raises(daybook.NotAllowedError),
        blocking.connect(secure.service_url, tls=secure.tls) as client,
    ):
        client.create_producer(topic)
    other = TlsOptions(trusted=OtherAuthority(tmp_path).trusted)
    with (
        pytest.raises(daybook.TlsError, match="signed by nobody whom this client trusts"),
        blocking.connect(secure.service_url, tls=other, token=secure.token) as client,
    ):
        client.create_producer(topic)


def test_the_rest_asks_for_a_token_and_speaks_tls_alone(secure: StandaloneProcess) -> None:
    path = "/admin/v2/namespaces/public"
    assert asked(secure, path) == 401
    assert asked(secure, path, token="x.y.z") == 401
    assert asked(secure, path, token=token_of(secure)) == 200
    assert asked(secure, "/healthz") == 200
    assert asked(secure, "/metrics") == 401
    assert asked(secure, "/metrics", token=token_of(secure)) == 200
    # Without TLS the client is only told to use it.
    assert asked(secure, path, token=token_of(secure), scheme="http") == 400


def test_what_strangers_tried_is_on_record(secure: StandaloneProcess, topic: str) -> None:
    with (
        pytest.raises(daybook.NotAllowedError),
        blocking.connect(secure.service_url, tls=secure.tls) as client,
    ):
        client.create_producer(topic)

    def lines() -> list[dict[str, Any]]:
        files = (secure.directory / "logs").glob("*.audit.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    wait_until(lambda: any(not line["allowed"] for line in lines()), "a refusal is on record")


def test_brokers_know_each_other_and_take_over(secure: StandaloneProcess, topic: str) -> None:
    with ours(secure) as client, client.create_producer(topic) as producer:
        producer.send(b"one")
        url = client.lookup(topic)
        (owner,) = [b["name"] for b in secure.ready["brokers"] if b["service_url"] == url]
        secure.local("kill", owner)
        producer.send(b"two")
        assert client.lookup(topic) != url
        secure.local("start", owner)
    with blocking.connect_admin(secure.admin_url, tls=secure.tls, token=secure.token) as admin:
        assert admin.topics() is not None
    logs = [path for path in (secure.directory / "logs").glob("broker-*") if owner not in path.name]
    assert "another broker is dead" in "".join(path.read_text() for path in logs)


def test_commands_find_the_cluster_and_its_credentials(
    secure: StandaloneProcess, topic: str, tmp_path: Path
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DAYBOOK_")}
    done = subprocess.run(
        [*processes.DAYBOOK, "produce", topic],
        input="one\n",
        env={**clean, "DAYBOOK_DIR": str(secure.directory)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The one line that is printed, in a shell elsewhere.
    command = " ".join(map(shlex.quote, processes.DAYBOOK))
    line = f". {shlex.quote(secure.ready['environment'])}"
    script = f"{line} && {command} consume {topic} --from earliest -n 1 && {command} brokers list"
    done = subprocess.run(
        ["sh", "-c", script],
        env=clean | {"PYTHONPATH": str(processes.ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "one"
    assert "no command knows this variable" not in done.stderr


def test_a_new_certificate_disturbs_nobody(secure: StandaloneProcess, topic: str) -> None:
    before = served_certificate(secure).serial_number
    known = names_for((), ("renewed.example",))
    with ours(secure) as client, client.create_producer(topic) as producer:
        producer.send(b"before")
        assert Security(secure.directory / "security", known).renew(SystemClock())
        sent = 0

        def is_served() -> bool:
            nonlocal sent
            producer.send(b"meanwhile")
            sent += 1
            return served_certificate(secure).serial_number != before

        wait_until(is_served, "the new certificate is served")
        with ours(secure) as newcomer, newcomer.create_reader(topic, start="earliest") as reader:
            bodies = [reader.receive(timeout_s=PATIENCE_S).data for _ in range(sent + 1)]
    assert bodies == [b"before", *[b"meanwhile"] * sent]
    for index in (1, 2):
        log = (secure.directory / "logs" / f"broker-{index}.log").read_text()
        assert "cannot be used, so the previous ones stay in force" not in log


def test_no_secret_is_printed_or_logged(secure: StandaloneProcess) -> None:
    """This test comes last of those with one cluster, when the logs have what others caused."""
    texts = [path.read_text() for path in (secure.directory / "logs").iterdir()]
    texts += [path.read_text() for path in (secure.directory / "conf").iterdir()]
    texts += [json.dumps(secure.ready), (secure.directory / "standalone.json").read_text()]
    text = "".join(texts)
    security = secure.directory / "security"
    for name in ("admin.token", "broker.token"):
        token = (security / name).read_text().strip()
        assert token not in text
        assert token.rpartition(".")[2] not in text
    for name in ("authority.key", "token-private.pem", "server.pem"):
        key = (security / name).read_text().partition("BEGIN PRIVATE KEY")[2].splitlines()
        assert not [line for line in key if len(line) > 20 and "--" not in line and line in text]


def test_a_secure_cluster_stays_secure_until_it_is_told_otherwise(tmp_path: Path) -> None:
    with small(tmp_path, *ANY_PORTS, secure=True) as first:
        trusted = Path(first.ready["trusted"]).read_bytes()
        token = token_of(first)
        with ours(first) as client, client.create_producer("t") as producer:
            producer.send(b"kept")
    with small(tmp_path) as again:
        assert again.ready["secure"]
        assert again.service_url == first.service_url
        assert Path(again.ready["trusted"]).read_bytes() == trusted
        assert token_of(again) == token
        with ours(again) as client, client.create_reader("t", start="earliest") as reader:
            assert reader.receive(timeout_s=PATIENCE_S).data == b"kept"
        plain = again.service_url.replace("pulsar+ssl", "pulsar")
        with pytest.raises(daybook.BrokerError), blocking.connect(plain) as client:
            client.create_producer("t")
    with small(tmp_path, "--insecure") as opened:
        assert not opened.ready["secure"]
        assert opened.service_url == plain
        with (
            blocking.connect(opened.service_url) as client,
            client.create_reader("t", start="earliest") as reader,
        ):
            assert reader.receive(timeout_s=PATIENCE_S).data == b"kept"
    with small(tmp_path) as still_open:
        assert still_open.service_url == plain
    with small(tmp_path, secure=True) as locked:
        assert Path(locked.ready["trusted"]).read_bytes() == trusted
        with ours(locked) as client, client.create_reader("t", start="earliest") as reader:
            assert reader.receive(timeout_s=PATIENCE_S).data == b"kept"


def reached_from(host: str, url: str) -> bool:
    """Return True if the port of a URL accepts connections at another address of this machine."""
    _, port = address_of(url)
    with socket.socket() as sock:
        sock.settimeout(PATIENCE_S)
        return sock.connect_ex((host, port)) == 0


def test_an_older_directory_works_on_all_addresses_with_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with small(tmp_path, *ANY_PORTS) as first:
        assert not reached_from("127.0.0.2", first.service_url)
    state = tmp_path / "standalone.json"
    older = json.loads(state.read_text())
    assert older.pop("security") == "none"
    state.write_text(json.dumps({**older, "version": 1}))
    capfd.readouterr()
    with small(tmp_path, "--host", "0.0.0.0", "--advertised-host", "127.0.0.3") as exposed:
        assert reached_from("127.0.0.2", exposed.service_url)
        assert "127.0.0.3:" in exposed.service_url
        (bookie,) = exposed.ready["bookies"]
        assert not reached_from("127.0.0.2", f"x://{bookie['address']}")
        assert not reached_from("127.0.0.2", f"x://{exposed.zookeeper}")
        with blocking.connect(exposed.service_url) as client:
            client.create_producer("t").send(b"x")
    said = [line for line in capfd.readouterr().err.splitlines() if "everybody" in line]
    assert len(said) == 1
    assert "everybody who reaches 0.0.0.0 may read, write and delete everything" in said[0]


def fails(*options: str) -> str:
    """Run `daybook standalone`, which must fail; return its last line."""
    done = processes.daybook("standalone", *options)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()[-1]


def test_a_new_directory_is_not_opened_to_others_without_a_word(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "new"), "--bookies", "1", "--brokers", "1", *ANY_PORTS)
    assert "lock the cluster with --secure, or say with --insecure" in fails(
        *where, "--host", "0.0.0.0"
    )
    assert not (tmp_path / "new" / "standalone.json").exists()
    with small(tmp_path / "new", *ANY_PORTS, "--insecure", "--host", "0.0.0.0") as exposed:
        assert reached_from("127.0.0.2", exposed.service_url)
    # A directory that was made for this machine alone is no older one.
    small(tmp_path / "local", *ANY_PORTS).stop()
    assert "lock the cluster with --secure" in fails(
        "--dir", str(tmp_path / "local"), "--host", "0.0.0.0"
    )


def test_keys_that_are_lost_or_open_and_a_certificate_that_is_due(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path), "--bookies", "1", "--brokers", "1")
    with small(tmp_path, *ANY_PORTS, secure=True) as first:
        ports = first.service_url
    folder = tmp_path / "security"
    key = folder / "authority.key"
    content = key.read_bytes()
    key.unlink()
    assert "authority.key is away from" in fails(*where)
    key.write_bytes(content)
    key.chmod(0o644)
    assert "Other users of this machine may use" in fails(*where)
    key.chmod(0o600)
    authority = Authority.load(folder / "authority.pem", key, datetime.now(UTC))
    # It began to be valid a day ago, so four fifths of its life are over.
    aged = authority.issue(names_for((), ()), timedelta(hours=6), datetime.now(UTC))
    server = folder / "server.pem"
    server.write_bytes(aged.certificate + aged.key)
    with small(tmp_path) as again:
        assert again.service_url == ports
        left = served_certificate(again).not_valid_after_utc - datetime.now(UTC)
        assert left > timedelta(days=89)
