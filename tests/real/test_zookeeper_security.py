"""A cluster whose ZooKeeper has TLS: its records are protected and opened again under traffic."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from daybook.clients.cli.ports import PortChooser
from daybook.clients.cli.zookeeper import ServerTls
from daybook.wire.metadata.acl import digest_identity
from daybook.wire.tls_files import TlsFiles
from tests.harness.certificates import Authority
from tests.harness.processes import (
    DAYBOOK,
    PATIENCE_S,
    ServerProcess,
    daybook,
    end,
    wait_until,
)
from tests.harness.zookeeper import run_zookeeper
from tests.real.traffic import open_traffic

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("zookeeper_security")]

T = TypeVar("T")
PASSWORD, ADMIN_PASSWORD = "the password of the cluster", "the password of the operator"
ADMIN = digest_identity("admin", ADMIN_PASSWORD)
BOOKIES, BROKERS = 3, 2


@dataclass
class Secure:
    """Three bookies and two brokers, which show an identity to ZooKeeper or not."""

    directory: Path
    authority: Authority
    zookeeper: str
    ports: list[tuple[int, int]]
    processes: dict[str, ServerProcess] = field(default_factory=dict[str, ServerProcess])

    @property
    def names(self) -> list[str]:
        bookies = [f"bookie-{number}" for number in range(BOOKIES)]
        return [*bookies, *(f"broker-{number}" for number in range(BROKERS))]

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port, _ in self.ports[BOOKIES:])

    def file(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(f"{text}\n")
        return path

    def start(self, name: str, *, identity: bool, port: int | None = None) -> ServerProcess:
        service, http = self.ports[self.names.index(name)]
        settings: dict[str, Any] = {
            "port": service if port is None else port,
            "http_port": http if port is None else port,
            "zookeeper": self.zookeeper,
            "zookeeper_tls": True,
            "tls_trusted": str(self.authority.trusted),
            "session_timeout_s": 4.0,
        }
        if identity:
            settings["zookeeper_user"] = "daybook"
            settings["zookeeper_password_file"] = str(self.file("password", PASSWORD))
        module = "daybook.broker"
        if name.startswith("bookie"):
            module = "daybook.bookie.server"
            settings["directories"] = [str(self.directory / name)]
        else:
            settings["topic_idle_unload_s"] = 0.0
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        config = self.file(f"{name}.toml", text)
        return ServerProcess(module, "--config", str(config), log=self.directory / f"{name}.log")

    def run(self, name: str, *, identity: bool) -> None:
        self.processes[name] = self.start(name, identity=identity).read_ready()

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        end(self.processes.pop(name).process, number)

    def command(self, *words: str, user: str = "daybook", password: str = PASSWORD) -> list[str]:
        """Return the command line of `daybook cluster WORDS` with an identity."""
        return [
            *(*DAYBOOK, "cluster", *words, "--zookeeper", self.zookeeper, "--zookeeper-tls"),
            *("--tls-trusted", str(self.authority.trusted), "--zookeeper-user", user),
            *("--zookeeper-password-file", str(self.file(f"{user}.password", password))),
        ]

    def secure(self, *words: str, **who: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command("secure-metadata", *words, **who),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def open_kazoo(self, *who: str) -> KazooClient:
        """Open a client of others, as a user with a password or as a stranger."""
        client = KazooClient(
            self.zookeeper,
            use_ssl=True,
            ca=str(self.authority.trusted),
            timeout=30,
            auth_data=[("digest", ":".join(who))] if who else None,
        )
        client.start(PATIENCE_S)
        return client


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Secure]:
    """Run all processes, which show no identity yet."""
    authority = Authority(tmp_path)
    issued = authority.issue("zookeeper")
    files = TlsFiles(issued.certificate, issued.key, authority.trusted)
    with PortChooser(SystemRandom()) as ports:
        pairs = [(ports.any(), ports.any()) for _ in range(BOOKIES + BROKERS)]
    with run_zookeeper(tmp_path / "zookeeper", ServerTls(files)) as zookeeper:
        made = Secure(tmp_path, authority, f"localhost:{zookeeper.port}", pairs)
        try:
            for name in made.names:
                made.processes[name] = made.start(name, identity=False)
            for process in made.processes.values():
                process.read_ready()
            yield made
        finally:
            for process in made.processes.values():
                process.kill()


async def in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


def records(client: KazooClient, path: str = "/") -> list[str]:
    """Return all paths.  Brokers and bookies may remove records meanwhile."""
    if path == "/zookeeper":
        return []
    try:
        below = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    except NoNodeError:
        return []
    return [path, *(each for child in below for each in records(client, child))]


def open_records(client: KazooClient) -> list[str]:
    """Return the records that strangers may change, without announcements."""
    found: list[str] = []
    for path in records(client):
        with suppress(NoNodeError):  # It has been removed since it was listed.
            acls = client.get_acls(path)[0]
            if any(acl.id.scheme == "world" and acl.perms & ~1 for acl in acls):
                found.append(path)
    return found


def step(client: KazooClient) -> str:
    """Return the step that the tree is in."""
    if not client.exists("/daybook/security"):
        return "open"
    return str(json.loads(client.get("/daybook/security")[0])["step"])


def attack(stranger: KazooClient, admin: KazooClient) -> None:
    """Try what a stranger may not do: change anything, or read the password of a ledger."""
    ledgers = 0
    for path in records_of_stranger(stranger):
        attempts: list[Callable[[], object]] = [
            partial(stranger.set, path, b""),
            partial(stranger.create, f"{path.rstrip('/')}/stranger", b""),
            partial(stranger.set_acls, path, OPEN_ACL_UNSAFE),
        ]
        if path != "/":
            attempts.append(partial(stranger.delete, path))
        try:
            for attempt in attempts:
                with pytest.raises(NoAuthError):
                    attempt()
        except NoNodeError:  # The cluster works: a session or a ledger has ended meanwhile.
            assert admin.exists(path) is None
            continue
        if path.startswith("/ledgers/") and path.rpartition("/")[2].startswith("L0"):
            ledgers += 1
            with pytest.raises(NoAuthError):
                stranger.get(path)
    assert ledgers > 0


def records_of_stranger(stranger: KazooClient, path: str = "/") -> list[str]:
    if path == "/zookeeper":
        return []
    try:
        names = stranger.get_children(path)
    except NoAuthError:
        return [path]
    below = [f"{path.rstrip('/')}/{name}" for name in names]
    return [path, *(each for child in below for each in records_of_stranger(stranger, child))]


async def test_a_cluster_is_locked_and_opened_again_under_traffic(secure: Secure) -> None:
    admin = await in_thread(lambda: secure.open_kazoo("admin", ADMIN_PASSWORD))
    stranger = await in_thread(secure.open_kazoo)
    try:
        async with open_traffic(secure.service_url, "locked") as traffic:
            await the_first_step(secure, admin)
            await traffic.wait_acknowledged(50)
            await an_interrupted_second_step(secure, admin)
            await traffic.wait_acknowledged(50)
            await in_thread(lambda: attack(stranger, admin))
            async with open_traffic(secure.service_url, "made-later") as later:
                await later.finish()
            assert await in_thread(lambda: open_records(admin)) == []
            await the_third_step(secure, admin)
            await traffic.wait_acknowledged(50)
            await the_way_back(secure, admin, stranger)
            await traffic.wait_acknowledged(50)
            again = await in_thread(lambda: secure.secure("--admin-identity", ADMIN))
            assert again.returncode == 0, again.stderr
            await traffic.wait_acknowledged(50)
            await in_thread(lambda: attack(stranger, admin))
            await traffic.finish()
    finally:
        for client in (admin, stranger):
            await in_thread(client.stop)
            await in_thread(client.close)


async def the_first_step(secure: Secure, admin: KazooClient) -> None:
    """Identify: nothing can be locked before all processes show an identity."""
    waiting = secure.names
    for name in secure.names:
        if len(waiting) in (len(secure.names), 1):
            refused = await in_thread(lambda: secure.secure("--admin-identity", ADMIN))
            assert refused.returncode == 1
            for other in secure.names:
                kind, port = other.partition("-")[0], secure.ports[secure.names.index(other)][0]
                sentence = f"the {kind} 127.0.0.1:{port} shows no identity"
                assert (sentence in refused.stderr) == (other in waiting)
            assert step(admin) == "open"
        waiting = waiting[1:]
        await in_thread(partial(secure.stop, name))
        await in_thread(partial(secure.run, name, identity=True))
    assert await in_thread(lambda: open_records(admin)) != []


async def an_interrupted_second_step(secure: Secure, admin: KazooClient) -> None:
    """Protect: a broker is killed in the middle, and the command is, too."""
    words = secure.command("secure-metadata", "--admin-identity", ADMIN)
    command = await in_thread(
        lambda: subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    )
    await in_thread(lambda: wait_until(lambda: step(admin) != "open", "the command has begun"))
    await in_thread(lambda: secure.stop("broker-1", signal.SIGKILL))
    command.kill()
    command.wait()
    done = await in_thread(lambda: secure.secure("--admin-identity", ADMIN))
    assert done.returncode == 0, done.stderr
    assert "protected" in done.stdout
    await in_thread(lambda: secure.run("broker-1", identity=True))


async def the_third_step(secure: Secure, admin: KazooClient) -> None:
    """Require: a broker without an identity does not start, and says what to do."""
    done = await in_thread(lambda: secure.secure("--require"))
    assert done.returncode == 0, done.stderr
    assert step(admin) == "required"
    nobody = secure.start("broker-1", identity=False, port=0)
    assert await nobody.wait() == 2
    nobody.kill()
    log = nobody.log.read_text()
    assert "set zookeeper_user and zookeeper_password_file" in log
    wrong = await in_thread(lambda: secure.secure("--undo", password="another"))
    assert wrong.returncode == 1
    assert "The identity of this command has no rights" in wrong.stderr


async def the_way_back(secure: Secure, admin: KazooClient, stranger: KazooClient) -> None:
    for after in ("protected", "open"):
        done = await in_thread(lambda: secure.secure("--undo"))
        assert done.returncode == 0, done.stderr
        assert step(admin) == after
    await in_thread(lambda: stranger.create("/free", b""))
    await in_thread(lambda: stranger.delete("/free"))


async def test_the_operator_gets_in_with_the_own_identity(secure: Secure) -> None:
    """The password of the processes is lost: the operator opens the records."""
    for name in secure.names:
        await in_thread(partial(secure.stop, name))
    done = await in_thread(lambda: secure.secure("--admin-identity", ADMIN))
    assert done.returncode == 0, done.stderr
    os.unlink(secure.directory / "daybook.password")
    done = await in_thread(lambda: secure.secure("--undo", user="admin", password=ADMIN_PASSWORD))
    assert done.returncode == 0, done.stderr
    assert "open" in done.stdout


def test_the_way_back_in_when_all_passwords_are_lost(tmp_path: Path) -> None:
    """ZooKeeper's superDigest opens a tree to which nobody has a password any more."""
    with run_zookeeper(tmp_path / "zookeeper") as zookeeper:

        def cluster(*words: str, user: str) -> "subprocess.CompletedProcess[str]":
            file = tmp_path / user
            file.write_text(f"the password of {user}\n")
            who = ("--zookeeper-user", user, "--zookeeper-password-file", str(file))
            where = () if words == ("identity",) else ("--zookeeper", zookeeper.address)
            return daybook("cluster", *words, *where, *who)

        client = KazooClient(zookeeper.address)
        client.start(PATIENCE_S)
        client.create("/ledgers/00/0000/L0000", b"password", makepath=True)
        words = ("secure-metadata", "--admin-identity", ADMIN)
        assert cluster(*words, user="lost").returncode == 0
        with pytest.raises(NoAuthError):
            client.get("/ledgers/00/0000/L0000")
        assert cluster("secure-metadata", "--undo", user="super").returncode == 1

        superuser = cluster("identity", user="super").stdout.strip().removeprefix("digest:")
        option = f"-Dzookeeper.DigestAuthenticationProvider.superDigest={superuser}"
        zookeeper.kill()
        zookeeper.start(option)
        opened = cluster("secure-metadata", "--undo", user="super")
        assert opened.returncode == 0, opened.stderr
        client.set("/ledgers/00/0000/L0000", b"mine again")
        client.stop()
        client.close()


def test_the_records_are_shown_to_those_who_may_see_them(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "tools" / "show_zookeeper.py"
    authority = Authority(tmp_path)
    issued = authority.issue("zookeeper")
    files = TlsFiles(issued.certificate, issued.key, authority.trusted)
    with run_zookeeper(tmp_path / "zookeeper", ServerTls(files)) as zookeeper:
        made = Secure(tmp_path, authority, f"localhost:{zookeeper.port}", [(0, 0)] * 5)
        client = made.open_kazoo()
        for name, value in (("LAYOUT", b"x"), ("INSTANCEID", b"y"), ("00/0000/L0000", b"")):
            client.create(f"/ledgers/{name}", value, makepath=True)
        client.create("/managed-ledgers", b"")
        assert made.secure("--admin-identity", ADMIN).returncode == 0

        def show(*who: str) -> str:
            trusted = ("--tls-trusted", str(authority.trusted))
            words = [sys.executable, str(script), made.zookeeper, *trusted, *who]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        hidden = "/ledgers/00/0000/L0000   (not readable without an identity)"
        stranger = show()
        assert hidden in stranger
        assert '"step":"protected"' in stranger
        file = made.file("daybook.password", PASSWORD)
        assert hidden not in show("--user", "daybook", "--password-file", str(file))
        client.stop()
        client.close()
