"""A cluster whose bookies demand TLS and passwords from brokers, commands, and each other."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import daybook
from daybook.clients import ledgers
from daybook.clients.ledgers import BookieAccess
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from daybook.wire.digest_md5 import secret_of
from tests.harness.certificates import Authority
from tests.real.commands import run_here

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("bookie-security")]

PATIENCE_S = 180.0
USER, PASSWORD = "inside", "a password that must be in no log"


@dataclass
class Locked:
    cluster: StandaloneProcess
    words: tuple[str, ...]  # the options that the command line needs
    access: BookieAccess

    def daybook(self, *words: str, exit_code: int = 0) -> str:
        done = run_here(*words, "--zookeeper", self.cluster.zookeeper)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    directory = tmp_path_factory.mktemp("locked")
    authority = Authority(directory)
    issued = authority.issue("inside")
    (directory / "users").write_text(f"{USER}:bookkeeper:{secret_of(USER, PASSWORD).hex()}\n")
    password = directory / "password"
    password.write_text(PASSWORD + "\n")
    outgoing = {
        "TLS_CERTIFICATE": str(issued.certificate),
        "TLS_KEY": str(issued.key),
        "TLS_TRUSTED": str(authority.trusted),
        "BOOKIE_TLS": "true",
        "BOOKIE_USER": USER,
        "BOOKIE_PASSWORD_FILE": str(password),
    }
    incoming = {
        "TLS": "required",
        "AUTHENTICATION": "require",
        "USERS_FILE": str(directory / "users"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in outgoing.items():
            patch.setenv(f"DAYBOOK_BROKER_{name}", value)
        for name, value in (outgoing | incoming).items():
            patch.setenv(f"DAYBOOK_BOOKIE_{name}", value)
        # A bookie that is killed is away when its session ends.
        options = (*ANY_PORTS, "--set", "bookie.session_timeout_s=4")
        running = StandaloneProcess(
            directory=directory / "data", bookies=4, brokers=1, options=options
        )
    words = (
        *("--bookie-tls", "--tls-trusted", str(authority.trusted)),
        *("--bookie-user", USER, "--bookie-password-file", str(password)),
    )
    access = BookieAccess(True, authority.trusted, user=USER, password_file=password)
    with running:
        yield Locked(running, words, access)


def test_messages_are_stored_and_read(locked: Locked) -> None:
    with daybook.blocking.connect(locked.cluster.service_url) as client:
        with client.create_producer("greetings") as producer:
            for number in range(100):
                producer.send(str(number).encode())
        with client.subscribe("greetings", "all", initial_position="earliest") as consumer:
            for number in range(100):
                message = consumer.receive(timeout_s=PATIENCE_S)
                assert message.data == str(number).encode()
                consumer.ack(message)


def test_a_stranger_writes_nothing(locked: Locked) -> None:
    address = f"zk://{locked.cluster.zookeeper}/ledgers"
    with (
        ledgers.blocking.connect(address) as stranger,
        pytest.raises((ledgers.LedgerError, TimeoutError)),
    ):
        stranger.create().append(b"x", timeout_s=10)
    with (
        ledgers.blocking.connect(address, bookie_access=locked.access) as client,
        # With all copies there, `ledgers check` has nothing to say about this ledger later.
        client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer,
    ):
        assert writer.append(b"x", timeout_s=PATIENCE_S) == 0


def test_commands_need_the_credentials(locked: Locked) -> None:
    rows = json.loads(locked.daybook("bookies", "health", "--output", "json", *locked.words))
    assert [row["answers"] for row in rows] == [True] * 4
    locked.daybook("ledgers", "check", "--read", *locked.words)
    rows = json.loads(locked.daybook("bookies", "health", "--output", "json", exit_code=3))
    assert not any(row["answers"] for row in rows)
    assert all(row["refuses"] for row in rows)


def test_bookies_restore_the_copies_of_a_lost_one(locked: Locked) -> None:
    """Bookies read from each other, and write to each other, with their own password."""
    address = f"zk://{locked.cluster.zookeeper}/ledgers"
    with ledgers.blocking.connect(address, bookie_access=locked.access) as client:
        with client.create() as writer:
            for number in range(100):
                writer.append(str(number).encode(), timeout_s=PATIENCE_S)
        victim = client.metadata(writer.ledger_id).last_fragment.ensemble[0]
    part = next(each for each in locked.cluster.parts() if each.get("address") == victim)
    locked.cluster.local("kill", part["name"])
    deadline = time.monotonic() + PATIENCE_S
    while True:
        locked.daybook("autorecovery", "trigger")
        with ledgers.blocking.connect(address, bookie_access=locked.access) as client:
            if victim not in client.metadata(writer.ledger_id).last_fragment.ensemble:
                break
        assert time.monotonic() < deadline, "no copy was made"
        time.sleep(0.3)
    with ledgers.blocking.connect(address, bookie_access=locked.access) as client:
        reader = client.open(writer.ledger_id, recover=False)
        assert len(list(reader.read(timeout_s=PATIENCE_S))) == 100


def test_no_log_has_the_password(locked: Locked) -> None:
    logs = [path for path in Path(locked.cluster.directory).rglob("*") if path.is_file()]
    secret = secret_of(USER, PASSWORD).hex()
    read = 0
    for path in logs:
        if path.suffix in (".log", ".txt", ".json") or os.access(path, os.R_OK):
            content = path.read_bytes()
            read += 1
            assert PASSWORD.encode() not in content, path
            assert secret.encode() not in content, path
    assert read
