"""The ledger client and bookies that demand TLS and credentials, over sockets."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import pytest
import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.client import LedgerClient, LedgerLimits, Quorums, open_ledger_client
from daybook.bookie.ledger.codecs import VersionChoice
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.security import (
    BookieAccess,
    BookieSecurityError,
    PasswordFile,
    open_bookie_security,
)
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import bookie_info
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import MemoryIndexes
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.digest_md5 import secret_of
from daybook.wire.logging import silent_log
from daybook.wire.messages.bookie_v3 import encode_list_entries
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork
from daybook.wire.transport import Stream
from tests.bookie.server.peer import PATIENCE_S
from tests.harness.certificates import Authority

B1 = BookieId("b1")
QUORUMS = Quorums(1, 1, 1)
USERS = {"broker": "secret", "bookie": "other"}


@dataclass
class World:
    directory: Path
    nursery: trio.Nursery
    authority: Authority
    store: MemoryStore = field(default_factory=lambda: MemoryStore(SystemClock()))
    indexes: MemoryIndexes = field(default_factory=MemoryIndexes)
    flusher: Flusher = field(default_factory=Flusher)

    def __post_init__(self) -> None:
        lines = [f"{user}:bookkeeper:{secret_of(user, p).hex()}\n" for user, p in USERS.items()]
        (self.directory / "users").write_text("".join(lines))
        for user, password in (*USERS.items(), ("wrong", "wrong")):
            (self.directory / f"{user}.password").write_text(password + "\n")

    def settings(self, **more: object) -> dict[str, object]:
        """Return settings with TLS and passwords, both required."""
        issued = self.authority.issue("bookie")
        return {
            "directories": [str(self.directory / "d0")],
            "bookie_id": "b1",
            "port": 0,
            "tls": "required",
            "tls_certificate": str(issued.certificate),
            "tls_key": str(issued.key),
            "tls_trusted": str(self.authority.trusted),
            "authentication": "require",
            "users_file": str(self.directory / "users"),
            "bookie_tls": True,
            "bookie_user": "bookie",
            "bookie_password_file": str(self.directory / "bookie.password"),
            **more,
        }

    @asynccontextmanager
    async def bookie(self, **more: object) -> AsyncGenerator[RunningBookie]:
        config = msgspec.convert(self.settings(**more), BookieConfig)
        session = self.store.session("bookie")
        ended = trio.Event()

        async def run(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            try:
                with scope:
                    await run_bookie(
                        config,
                        network=TcpNetwork(),
                        metadata=session,
                        disk=FileDisk(),
                        index=self.indexes.open,
                        clock=SystemClock(),
                        rng=Random(1),
                        task_status=task_status,
                    )
            finally:
                session.close()
                ended.set()

        scope = trio.CancelScope()
        running: RunningBookie = await self.nursery.start(run)
        yield running
        scope.cancel()
        await ended.wait()

    def access(self, user: str = "broker", password: str = "", **more: object) -> BookieAccess:
        values: dict[str, object] = {
            "tls": True,
            "trusted": self.authority.trusted,
            "user": user,
            "password_file": self.directory / f"{password or user}.password",
            **more,
        }
        return BookieAccess(**values)  # type: ignore[arg-type]

    @asynccontextmanager
    async def client(
        self,
        access: BookieAccess,
        protocol: VersionChoice = "auto",
        network: TcpNetwork | None = None,
        secure_timeout_s: float = PATIENCE_S,
    ) -> AsyncGenerator[LedgerClient]:
        limits = BookieLimits(protocol=protocol, secure_timeout_s=secure_timeout_s)
        async with open_ledger_client(
            store=self.store.session("client"),
            network=network or TcpNetwork(),
            rng=Random(2),
            clock=SystemClock(),
            arenas=ArenaPool(),
            flusher=self.flusher,
            limits=LedgerLimits(bookies=limits),
            security=open_bookie_security(access, clock=SystemClock(), log=silent_log()),
        ) as client:
            yield client

    async def why_refused(self, access: BookieAccess, **more: float) -> str:
        """Return why a connection of a client to b1 fails."""
        async with self.client(access, **more) as client:  # type: ignore[arg-type]
            with pytest.raises(BookieSecurityError) as caught:
                await client.context.bookies.connect(B1)
        return str(caught.value)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with trio.open_nursery() as nursery:
        world = World(tmp_path, nursery, Authority(tmp_path))
        nursery.start_soon(world.flusher.run)
        yield world
        nursery.cancel_scope.cancel()


async def use(client: LedgerClient) -> int:
    """Write a ledger and read it with all kinds of requests; return its id."""
    writer = await client.create(QUORUMS)
    for number in range(50):
        writer.append([b"entry %d" % number])
    await writer.wait_confirmed(49)
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=True)
    entries = await reader.read(0, 49, max_bytes=1 << 20)
    assert bytes(entries[0].payload) == b"entry 0"
    listed = await client.context.requests.ask(
        B1, lambda txn: encode_list_entries(txn, writer.ledger_id), PATIENCE_S
    )
    assert listed.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
    deferred = await client.create_deferred(QUORUMS)
    deferred.append([b"deferred"])
    await deferred.force()
    await deferred.close()
    return writer.ledger_id


@pytest.mark.parametrize("protocol", ["v2", "v3", "auto"])
async def test_all_requests_over_tls_with_a_password(world: World, protocol: VersionChoice) -> None:
    async with world.bookie() as running, world.client(world.access(), protocol) as client:
        await use(client)
        statistics = running.server.statistics()
        assert statistics.peers_authenticated == statistics.tls_connections_made > 0
        assert statistics.peers_refused == 0


async def test_a_password_without_tls(world: World) -> None:
    access = world.access(tls=False, trusted=None)
    async with world.bookie(tls="off", bookie_tls=False), world.client(access) as client:
        await use(client)


async def test_a_certificate_in_place_of_a_password(world: World) -> None:
    issued = world.authority.issue("broker")
    allowed: dict[str, object] = {
        "users_file": "",
        "allowed_certificates": ["broker", "bookie"],
        "tls_client_certificates": "required",
        "bookie_user": "",
        "bookie_password_file": "",
    }
    access = BookieAccess(True, world.authority.trusted, issued.certificate, issued.key)
    async with world.bookie(**allowed):
        async with world.client(access) as client:
            await use(client)
        stranger = world.authority.issue("stranger")
        other = BookieAccess(True, world.authority.trusted, stranger.certificate, stranger.key)
        async with world.client(other) as client:
            writer = await client.create(QUORUMS)
            writer.append([b"x"])
            with pytest.raises(LedgerError):
                await writer.wait_confirmed(0)


async def test_a_wrong_password_is_refused_and_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.bookie() as running:
        with caplog.at_level(logging.WARNING):
            why = await world.why_refused(world.access(password="wrong"))
        assert "refuses the user 'broker' or its password" in why
        assert [record.message for record in caplog.records] == [why]
        assert "secret" not in caplog.text
        assert running.server.statistics().peers_refused == 1


async def test_a_right_password_without_tls_is_not_said_to_be_wrong(world: World) -> None:
    access = world.access(tls=False, trusted=None)
    async with world.bookie(tls="required"):
        why = await world.why_refused(access)
    assert "refuses an authentication without TLS: set bookie_tls" in why
    assert "password:" not in why


async def test_a_client_without_credentials_is_refused(world: World) -> None:
    access = BookieAccess(True, world.authority.trusted)
    async with world.bookie(), world.client(access, "v3") as client:
        answer = await client.context.requests.ask(
            B1, lambda txn: encode_list_entries(txn, 1), PATIENCE_S
        )
        assert answer.status == 502


@pytest.mark.parametrize("tls", [True, False])
async def test_a_bookie_that_refuses_a_client_counts_as_one_that_does_not_answer(
    world: World, caplog: pytest.LogCaptureFixture, tls: bool
) -> None:
    access = BookieAccess(tls, world.authority.trusted if tls else None)
    async with world.bookie():
        async with world.client(access) as client:
            assert not await client.context.bookies.probe(B1)
            assert not await client.context.bookies.probe(B1)
        assert "bookie b1 demands TLS or credentials of its clients" in caplog.text
        assert len(caplog.records) == 1
        async with world.client(world.access()) as client:
            assert await client.context.bookies.probe(B1)


async def test_a_client_with_tls_never_falls_back_to_plain_text(world: World) -> None:
    async with world.bookie(tls="off", bookie_tls=False) as running:
        why = await world.why_refused(world.access())
        assert "has no TLS, and bookie_tls is set" in why
        assert running.server.statistics().peers_authenticated == 0


async def test_a_bookie_whose_certificate_is_made_out_to_another_host_is_not_used(
    world: World,
) -> None:
    issued = world.authority.issue("elsewhere", hosts=("elsewhere",))
    async with world.bookie(tls_certificate=str(issued.certificate), tls_key=str(issued.key)):
        why = await world.why_refused(world.access())
        assert "bookie b1: the certificate of the server is not made out to 127.0.0.1" in why


async def test_a_bookie_of_another_authority_is_not_used(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with world.bookie():
        assert "signed by nobody" in await world.why_refused(world.access(trusted=other.trusted))


async def test_a_bookie_that_asks_nobody_is_used_with_credentials(world: World) -> None:
    settings: dict[str, object] = {"authentication": "off", "users_file": ""}
    async with world.bookie(**settings), world.client(world.access()) as client:
        await use(client)


async def test_a_bookie_that_does_not_answer_the_credentials_is_given_up(world: World) -> None:
    async with world.bookie() as running:
        info = await bookie_info(world.store.session("looking"), LedgerPaths(), "b1")
        assert info is not None
        assert info.tls
        running.flusher.flush = lambda: None  # type: ignore[method-assign]
        why = await world.why_refused(world.access(), secure_timeout_s=0.5)
        assert "did not complete TLS and authentication in time" in why


async def test_what_a_bookie_says_in_plain_text_behind_start_tls_is_not_taken(
    world: World,
) -> None:
    """An attacker on the way could have written it in the name of the bookie."""

    class Injecting(TcpNetwork):
        async def connect(self, host: str, port: int) -> Stream:
            stream = await super().connect(host, port)
            receive = stream.try_recv_into

            def try_recv_into(buffer: memoryview) -> int | None:
                count = receive(buffer)
                if count:
                    buffer[count : count + 4] = b"\0\0\0\7"
                    return count + 4
                return count

            stream.try_recv_into = try_recv_into  # type: ignore[method-assign]
            return stream

    async with world.bookie(), world.client(world.access(), network=Injecting()) as client:
        with pytest.raises(BookieSecurityError, match="in plain text in front of the TLS"):
            await client.context.bookies.connect(B1)


async def test_a_new_password_counts_at_the_next_connection(world: World) -> None:
    async with world.bookie(), world.client(world.access(password="wrong")) as client:
        with pytest.raises(BookieSecurityError):
            await client.context.bookies.connect(B1)
        (world.directory / "wrong.password").write_text("secret\nanother line\n")
        (await client.context.bookies.connect(B1)).close()
        (world.directory / "wrong.password").unlink()
        (await client.context.bookies.connect(B1)).close()


async def test_a_new_user_counts_without_a_restart(world: World) -> None:
    async with world.bookie(), world.client(world.access("new", "wrong")) as client:
        with pytest.raises(BookieSecurityError):
            await client.context.bookies.connect(B1)
        line = f"new:bookkeeper:{secret_of('new', 'wrong').hex()}\n"
        users = world.directory / "users"
        users.write_text(users.read_text() + line)
        await trio.sleep(0.6)  # The file is looked at twice a second.
        (await client.context.bookies.connect(B1)).close()
        users.write_text("half a line")
        await trio.sleep(0.6)
        (await client.context.bookies.connect(B1)).close()


def test_a_user_and_a_password_belong_together(tmp_path: Path) -> None:
    for access in (BookieAccess(user="broker"), BookieAccess(password_file=tmp_path / "x")):
        with pytest.raises(ConfigError, match="belong together"):
            open_bookie_security(access, clock=SystemClock(), log=silent_log())
    assert open_bookie_security(BookieAccess(), clock=SystemClock(), log=silent_log()) is None


@pytest.mark.parametrize("content", [None, b"", b"\nsecret", b"\xff", bytes(2000)])
def test_a_password_file_that_is_of_no_use(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        PasswordFile(path)
