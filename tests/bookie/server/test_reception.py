"""The port of a bookie with TLS and passwords, over real sockets: who gets in, and who does not."""

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from daybook.bookie.server.entrance import SASL, Door
from daybook.bookie.server.reception import FRAME_BYTES_MAX, Reception
from daybook.bookie.server.session import ServerLimits
from daybook.wire.clock import SystemClock
from daybook.wire.digest_md5 import DigestClient, secret_of
from daybook.wire.logging import silent_log
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.bookie import AddRun, AuthAnswer, Status
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import (
    ClientCertificates,
    ReloadedContext,
    TlsFiles,
    client_context,
    server_context,
)
from tests.bookie.server.conftest import Running, Start
from tests.bookie.server.peer import PATIENCE_S, Peer, add_frame
from tests.bookie.server.test_hostile import wait_until
from tests.harness.certificates import Authority
from tests.wire.test_tls_files import Lines

SECRET = secret_of("alice", "secret")
WITH_PASSWORDS = Door("require", secret=lambda user: SECRET if user == "alice" else None)
START_TLS = bookie_v3.encode_start_tls(1)


class World:
    """Certificates, and receptions that use them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.files = self.authority.files("bookie")
        self.lines = Lines()
        self.log = self.lines.log

    def reception(
        self,
        door: Door = WITH_PASSWORDS,
        *,
        certificates: ClientCertificates = "off",
        handshake_s: float = PATIENCE_S,
    ) -> Reception:
        build = partial(server_context, client_certificates=certificates)
        contexts = ReloadedContext(self.files, build, clock=SystemClock(), log=silent_log())
        return Reception(
            door,
            rng=Random(1),
            log=self.log,
            tls=TlsServer(contexts) if door.tls else None,
            handshake_s=handshake_s,
        )

    def context(self, name: str = "") -> ssl.SSLContext:
        """Return the context of a client, with a certificate if there is a name."""
        issued = self.authority.issue(name) if name else None
        files = TlsFiles(trusted=self.authority.trusted)
        if issued is not None:
            files = replace(files, certificate=issued.certificate, key=issued.key)
        return client_context(files)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def begin_tls(peer: Peer) -> None:
    response = await peer.ask_v3(START_TLS)
    assert (response.header.operation, response.status) == (pb.START_TLS, pb.EOK)


async def encrypted(peer: Peer, context: ssl.SSLContext) -> Peer:
    """Shake hands; return the peer over TLS."""
    stream = trio.SSLStream(peer.stream, context, server_hostname="127.0.0.1")
    await stream.do_handshake()
    over_tls = Peer(peer.stream)
    over_tls.stream = stream  # type: ignore[assignment]
    return over_tls


@asynccontextmanager
async def connected_with_tls(running: Running, context: ssl.SSLContext) -> AsyncIterator[Peer]:
    async with running.connect() as peer:
        await begin_tls(peer)
        yield await encrypted(peer, context)


async def log_in(peer: Peer, password: str = "secret") -> AuthAnswer:
    """Authenticate in v2; return the last answer."""
    answer = await peer.ask(bookie.encode_auth(SASL))
    assert isinstance(answer, AuthAnswer)
    response = DigestClient("alice", password, "cnonce").respond(answer.payload)
    await peer.send(bookie.encode_auth(SASL, response))
    answer = await peer.answer()
    assert isinstance(answer, AuthAnswer)
    return answer


async def test_a_password_lets_in_and_a_second_authentication_changes_nothing(
    start: Start, world: World
) -> None:
    """Apache's client sends one more AUTH behind the proof of the bookie."""
    async with start(reception=world.reception()) as running, running.connect() as peer:
        assert (await log_in(peer)).payload.startswith(b"rspauth=")
        answer = await peer.ask(bookie.encode_auth(SASL))
        assert answer == AuthAnswer(bookie.AUTH_DISABLED, b"")
        assert await peer.add(1, 0) is Status.OK
        assert (await peer.read(1, 0)).status == Status.OK
        assert running.server.statistics().peers_authenticated == 1


async def test_requests_right_behind_the_credentials_are_served_in_order(
    start: Start, world: World
) -> None:
    async with start(reception=world.reception()) as running, running.connect() as peer:
        answer = await peer.ask(bookie.encode_auth(SASL))
        assert isinstance(answer, AuthAnswer)
        response = DigestClient("alice", "secret", "cnonce").respond(answer.payload)
        adds = [add_frame(1, entry_id) for entry_id in range(3)]
        await peer.send(bookie.encode_auth(SASL, response), *adds)
        assert isinstance(await peer.answer(), AuthAnswer)
        for entry_id in range(3):
            assert await peer.answer() == AddRun(Status.OK, 1, entry_id, entry_id)


async def test_a_stranger_stores_and_reads_nothing(start: Start, world: World) -> None:
    async with start(reception=world.reception()) as running, running.connect() as peer:
        assert await peer.add(1, 0) is Status.UNAUTHORIZED
        assert (await peer.read(1, 0)).status == Status.UNAUTHORIZED
        await peer.send(bookie.encode_batch_read(1, 0, 1, entries_max=1, bytes_max=100))
        assert await peer.is_cut()
        assert running.store.statistics().entries_added == 0
        assert running.server.statistics().peers_refused == 3


async def test_a_wrong_password_ends_the_connection_and_names_the_peer_once(
    start: Start, world: World
) -> None:
    async with start(reception=world.reception()) as running:
        for _ in range(3):
            async with running.connect() as peer:
                answer = await peer.ask(bookie.encode_auth(SASL))
                assert isinstance(answer, AuthAnswer)
                response = DigestClient("alice", "wrong", "c").respond(answer.payload)
                await peer.send(bookie.encode_auth(SASL, response))
                assert await peer.is_cut()
        assert running.server.statistics().peers_refused == 3
        ((level, event, facts),) = world.lines.lines
        assert (level, event) == ("warning", "a peer is refused")
        assert facts["why"] == "the user or the password is wrong"


async def test_a_wrong_password_in_v3_is_answered_before_the_end(
    start: Start, world: World
) -> None:
    async with start(reception=world.reception()) as running, running.connect() as peer:
        response = await peer.ask_v3(bookie_v3.encode_auth(1, SASL, b""))
        challenge = response.authResponse.payload
        token = DigestClient("alice", "wrong", "c").respond(challenge)
        response = await peer.ask_v3(bookie_v3.encode_auth(2, SASL, token))
        assert (response.status, response.header.txnId) == (pb.EUA, 2)
        assert await peer.is_cut()


async def test_a_large_frame_of_a_stranger_ends_its_connection(start: Start, world: World) -> None:
    async with start(reception=world.reception()) as running, running.connect() as peer:
        await peer.send(struct.pack(">I", FRAME_BYTES_MAX + 1))
        assert await peer.is_cut()
    async with start(reception=world.reception()) as running, running.connect() as peer:
        await log_in(peer)
        assert await peer.add(1, 0, bytes(FRAME_BYTES_MAX * 2)) is Status.OK


async def test_a_peer_that_does_not_authenticate_itself_in_time_is_cut(
    start: Start, world: World
) -> None:
    limits = ServerLimits(first_frame_timeout_s=2.0)
    async with start(limits, reception=world.reception()) as running, running.connect() as peer:
        await peer.ask(bookie.encode_auth(SASL))
        assert await peer.is_cut()
        assert running.server.statistics().peers_refused == 1


async def test_strangers_keep_nobody_out(start: Start, world: World) -> None:
    """The oldest of them is cut for each newcomer, also one that has begun to authenticate."""
    limits = ServerLimits(newcomers_max=3)
    async with start(limits, reception=world.reception()) as running, running.connect() as first:
        await first.ask(bookie.encode_auth(SASL))
        async with running.connect(), running.connect(), running.connect() as last:
            assert await first.is_cut()
            await log_in(last)
            assert await last.add(1, 0) is Status.OK


async def test_who_comes_without_credentials_is_let_in_counted_and_named(
    start: Start, world: World
) -> None:
    door = replace(WITH_PASSWORDS, mode="permit")
    came: list[str] = []
    reception = Reception(door, rng=Random(1), log=world.log, came_without=came.append)
    async with start(reception=reception) as running:
        for _ in range(2):
            async with running.connect() as peer:
                assert await peer.add(1, 0) is Status.OK
                assert running.server.unproven() == 1
        async with running.connect() as peer:
            await log_in(peer)
            assert await peer.add(1, 1) is Status.OK
        statistics = running.server.statistics()
        assert (statistics.peers_without_credentials, statistics.peers_authenticated) == (2, 1)
        await wait_until(lambda: running.server.unproven() == 0)
        assert came == ["127.0.0.1", "127.0.0.1"]
        assert len([line for line in world.lines.pop() if "without credentials" in line]) == 1


async def test_a_large_first_request_without_credentials_is_served_where_that_is_allowed(
    start: Start, world: World
) -> None:
    door = replace(WITH_PASSWORDS, mode="permit")
    async with start(reception=world.reception(door)) as running, running.connect() as peer:
        assert await peer.add(1, 0, bytes(3 << 20)) is Status.OK


# -- TLS


TLS = Door(tls=True)
ONLY_TLS = Door(tls=True, require_tls=True)


@pytest.mark.parametrize("door", [TLS, ONLY_TLS])
async def test_requests_over_tls_in_both_protocols(start: Start, world: World, door: Door) -> None:
    async with start(reception=world.reception(door)) as running:
        async with connected_with_tls(running, world.context()) as peer:
            assert await peer.add(1, 0, bytes(1 << 20)) is Status.OK
            assert len((await peer.read(1, 0)).entry) > 1 << 20
        async with connected_with_tls(running, world.context()) as peer:
            response = await peer.ask_v3(bookie_v3.encode_read(7, 1, 0))
            assert (response.status, response.header.txnId) == (pb.EOK, 7)
        assert running.server.statistics().tls_connections_made == 2


async def test_plain_requests_beside_tls(start: Start, world: World) -> None:
    async with start(reception=world.reception(TLS)) as running, running.connect() as peer:
        assert await peer.add(1, 0) is Status.OK
        async with running.connect() as late:
            await late.ask_v3(bookie_v3.encode_bookie_info(1))
            assert (await late.ask_v3(START_TLS)).status == pb.EBADREQ  # It is too late for that.


async def test_a_request_without_tls_is_refused_and_the_connection_ends(
    start: Start, world: World
) -> None:
    async with start(reception=world.reception(ONLY_TLS)) as running:
        async with running.connect() as peer:
            assert await peer.add(1, 0) is Status.UNAUTHORIZED
            assert await peer.is_cut()
        async with running.connect() as peer:
            response = await peer.ask_v3(bookie_v3.encode_bookie_info(1))
            assert response.status == pb.EUA
            assert await peer.is_cut()


@pytest.mark.parametrize(
    "behind", [add_frame(1, 0), bookie_v3.encode_bookie_info(1), START_TLS, b"\0\0\0\2\1\1"]
)
async def test_what_is_said_in_plain_text_behind_start_tls_is_never_served(
    start: Start, world: World, behind: bytes
) -> None:
    """An attacker on the way could have written it, to have it done in the name of the client."""
    async with start(reception=world.reception(TLS)) as running:
        async with running.connect() as peer:
            await peer.send(START_TLS + behind)
            assert await peer.is_cut()
        async with running.connect() as peer:
            await begin_tls(peer)
            await peer.send(behind)
            assert await peer.is_cut()
        assert running.store.statistics().entries_added == 0


@pytest.mark.parametrize("together", [True, False])
async def test_apaches_client_begins_to_authenticate_itself_in_plain_text(
    start: Start, world: World, together: bool
) -> None:
    door = replace(WITH_PASSWORDS, tls=True, require_tls=True)
    begin = bookie.encode_auth(SASL)
    async with start(reception=world.reception(door)) as running, running.connect() as plain:
        await plain.send(START_TLS + begin if together else START_TLS)
        assert (await plain.response()).status == pb.EOK
        if not together:
            await plain.send(begin)
        peer = await encrypted(plain, world.context())
        challenge = await peer.answer()
        assert isinstance(challenge, AuthAnswer)
        token = DigestClient("alice", "secret", "c").respond(challenge.payload)
        assert isinstance(await peer.ask(bookie.encode_auth(SASL, token)), AuthAnswer)
        assert await peer.add(1, 0) is Status.OK


async def test_a_handshake_that_stands_still_ends_in_time(start: Start, world: World) -> None:
    reception = world.reception(TLS, handshake_s=0.2)
    async with start(reception=reception) as running:
        for half in (b"", b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\x10\x02"):
            async with running.connect() as peer:
                await begin_tls(peer)
                if half:
                    with suppress(trio.BrokenResourceError):  # It is too late on a slow machine.
                        await peer.send(half)
                assert await peer.is_cut()
        await wait_until(lambda: running.server.statistics().handshakes_failed == 3)
        await wait_until(lambda: running.server.statistics().connections == 0)


async def test_half_open_handshakes_keep_nobody_out(start: Start, world: World) -> None:
    limits = ServerLimits(newcomers_max=2)
    async with (
        start(limits, reception=world.reception(ONLY_TLS)) as running,
        running.connect() as first,
        running.connect() as second,
    ):
        for peer in (first, second):
            await begin_tls(peer)
        async with connected_with_tls(running, world.context()) as peer:
            assert await first.is_cut()
            assert await peer.add(1, 0) is Status.OK


async def test_a_certificate_of_another_authority_is_refused(
    start: Start, world: World, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other-ca").issue("broker")
    context = world.context()
    context.load_cert_chain(stranger.certificate, stranger.key)
    door = Door("require", tls=True, allowed_certificates=("broker",))
    reception = world.reception(door, certificates="optional")
    async with start(reception=reception) as running, running.connect() as peer:
        await begin_tls(peer)
        with pytest.raises(trio.BrokenResourceError):
            # With TLS 1.3 the client hears of a refusal when it receives.
            await (await encrypted(peer, context)).stream.receive_some()
        await wait_until(lambda: running.server.statistics().handshakes_failed == 1)


async def test_an_allowed_certificate_lets_in_and_another_one_does_not(
    start: Start, world: World
) -> None:
    door = Door("require", tls=True, allowed_certificates=("broker",))
    reception = world.reception(door, certificates="optional")
    async with start(reception=reception) as running:
        async with connected_with_tls(running, world.context("broker")) as peer:
            assert await peer.add(1, 0) is Status.OK
        for name in ("other", ""):
            async with connected_with_tls(running, world.context(name)) as peer:
                assert await peer.add(1, 1) is Status.UNAUTHORIZED
        assert running.server.statistics().peers_authenticated == 1


async def test_new_certificates_count_without_a_restart(start: Start, world: World) -> None:
    async with (
        start(reception=world.reception(ONLY_TLS)) as running,
        connected_with_tls(running, world.context()) as old,
    ):
        assert world.files.certificate is not None
        assert world.files.key is not None
        renewed = world.authority.issue("renewed")
        renewed.key.replace(world.files.key)
        renewed.certificate.replace(world.files.certificate)
        await trio.sleep(1.1)  # Files are looked at once a second.
        async with connected_with_tls(running, world.context()) as peer:
            shown = peer.stream.getpeercert()  # type: ignore[attr-defined]
            assert (("commonName", "renewed"),) in shown["subject"]
            assert await old.add(1, 0) is Status.OK


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_client_of_an_old_version_of_tls_is_refused(start: Start, world: World) -> None:
    context = world.context()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with start(reception=world.reception(ONLY_TLS)) as running, running.connect() as peer:
        await begin_tls(peer)
        with pytest.raises(trio.BrokenResourceError):
            await encrypted(peer, context)
