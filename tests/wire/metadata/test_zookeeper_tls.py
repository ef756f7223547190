"""TLS to a real ZooKeeper: the suite over it, both certificates, and what is refused."""

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import trio

from daybook.clients.cli.zookeeper import ServerTls
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.metadata.acl import ALL, OWN, Grant
from daybook.wire.metadata.store import NoContactError, SessionState, UnusableAccessError
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.tls_files import TlsFiles
from tests.conformance.metadata import PATIENCE_S, Calls, MetadataSuite
from tests.harness.certificates import Authority, Issued
from tests.harness.zookeeper import ZooKeeperProcess, run_zookeeper
from tests.wire.metadata.test_zookeeper import SESSION_TIMEOUT_S, ZooKeeperWorld

pytestmark = pytest.mark.real


class Place:
    """A ZooKeeper that demands certificates, and what its clients need."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", hosts=("localhost", "127.0.0.1"))
        self.client = self.authority.issue("client")
        self.running: ZooKeeperProcess | None = None

    @property
    def port(self) -> int:
        assert self.running is not None
        return self.running.port

    def files(self, issued: Issued | None) -> TlsFiles:
        if issued is None:
            return TlsFiles(trusted=self.authority.trusted)
        return TlsFiles(issued.certificate, issued.key, self.authority.trusted)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("tls"))
    tls = ServerTls(place.files(place.server), "required")
    with run_zookeeper(place.directory / "zookeeper", tls) as place.running:
        yield place


@pytest.fixture
async def world(place: Place) -> AsyncGenerator[ZooKeeperWorld]:
    async with trio.open_nursery() as nursery:
        yield ZooKeeperWorld(place.port, nursery, access=ZooKeeperAccess(place.files(place.client)))
        nursery.cancel_scope.cancel()


class TestZooKeeperWithTls(MetadataSuite):
    pass


async def refused(place: Place, access: ZooKeeperAccess, host: str = "localhost") -> str:
    with pytest.raises(NoContactError) as caught:
        async with open_zookeeper(
            f"{host}:{place.port}",
            session_timeout_s=SESSION_TIMEOUT_S,
            connect_timeout_s=3.0,
            access=access,
        ):
            raise AssertionError("the connection was accepted")
    return caught.value.why


async def test_the_certificate_of_a_client_is_an_identity(place: Place) -> None:
    async with open_zookeeper(
        f"localhost:{place.port}",
        session_timeout_s=SESSION_TIMEOUT_S,
        connect_timeout_s=PATIENCE_S,
        access=ZooKeeperAccess(place.files(place.client)),
    ) as store:
        await store.create("/mine", b"", acl=(Grant(OWN, ALL),))
        assert await store.get_acl("/mine") == (Grant("x509:CN=client", ALL),)


async def test_a_server_of_another_authority_is_refused(place: Place, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    why = await refused(place, ZooKeeperAccess(TlsFiles(trusted=other.trusted)))
    assert "signed by nobody whom this client trusts" in why


async def test_a_client_of_another_authority_is_refused(place: Place, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "other").issue("stranger")
    why = await refused(place, ZooKeeperAccess(place.files(stranger)))
    assert "TLS with ZooKeeper at" in why


async def test_a_client_without_a_certificate_is_refused(place: Place) -> None:
    why = await refused(place, ZooKeeperAccess(place.files(None)))
    assert "certificate" in why


async def test_a_client_without_tls_is_refused(place: Place) -> None:
    why = await refused(place, ZooKeeperAccess())
    assert "TLS" in why


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A ZooKeeper whose certificate is made out to another host."""
    place = Place(tmp_path_factory.mktemp("elsewhere"))
    issued = place.authority.issue("elsewhere", hosts=("elsewhere.example",))
    with run_zookeeper(place.directory / "zookeeper", ServerTls(place.files(issued))) as running:
        place.running = running
        yield place


async def test_a_certificate_for_another_host_is_refused(elsewhere: Place) -> None:
    why = await refused(elsewhere, ZooKeeperAccess(elsewhere.files(None)))
    assert "is not made out to localhost" in why
    async with open_zookeeper(
        f"localhost:{elsewhere.port}",
        session_timeout_s=SESSION_TIMEOUT_S,
        connect_timeout_s=PATIENCE_S,
        access=ZooKeeperAccess(elsewhere.files(None), verify_host=False),
    ) as store:
        await store.create("/a", b"")


async def test_certificates_are_exchanged_within_a_session(place: Place, tmp_path: Path) -> None:
    """An expired certificate keeps the session from coming back, until its files are replaced."""
    running = place.running
    assert running is not None
    own = place.authority.issue("own")
    files = place.files(own)
    async with open_zookeeper(
        f"localhost:{place.port}",
        session_timeout_s=SESSION_TIMEOUT_S,
        connect_timeout_s=PATIENCE_S,
        access=ZooKeeperAccess(files),
    ) as store:
        session_id = store.session_id
        heard = Calls()
        store.add_session_listener(heard)
        stranger = Authority(tmp_path, "other").issue("stranger")
        good = own.certificate.read_bytes(), own.key.read_bytes()
        own.key.write_bytes(stranger.key.read_bytes())
        own.certificate.write_bytes(stranger.certificate.read_bytes())
        with trio.fail_after(PATIENCE_S):
            await trio.sleep(1.1)  # files are looked at once a second
            running.kill()
            await trio.to_thread.run_sync(running.start)
            while "TLS with ZooKeeper" not in store._refused:  # noqa: ASYNC110
                await trio.sleep(0.05)
            assert store.session_state is SessionState.SUSPENDED
            own.key.write_bytes(good[1])
            own.certificate.write_bytes(good[0])
            await heard.wait(lambda: heard.states[-1:] == [SessionState.CONNECTED])
        assert store.session_id == session_id


async def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    for access in (
        ZooKeeperAccess(TlsFiles(trusted=missing)),
        ZooKeeperAccess(user="daybook", password_file=missing),
    ):
        with pytest.raises(UnusableAccessError, match=r"missing\.pem cannot be read"):
            async with open_zookeeper("localhost:1", session_timeout_s=1.0, access=access):
                raise AssertionError
