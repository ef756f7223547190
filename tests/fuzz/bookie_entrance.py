"""Targets: the way into a bookie that asks for a password, with garbage in front of it and behind.

`bookie.digest` gives any token to both sides of DIGEST-MD5.  `bookie.entrance` gives any frames, in
any order, to the entrance: nobody enters without the password.  `session.entrance` does the same
with a whole bookie that has TLS, over streams, beside a client with the password, which must not
notice.
"""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import trio

from daybook.bookie.ledger.security import BookieSecurity, PasswordFile
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.entrance import SASL, Action, Door, Entrance, Mode
from daybook.bookie.server.security import SecurityOfBookie
from daybook.bookie.server.users import Users
from daybook.bookie.storage.status import StoreError
from daybook.wire.digest_md5 import DigestClient, DigestError, DigestServer, secret_of
from daybook.wire.errors import ConnectionLostError
from daybook.wire.fields import U32
from daybook.wire.logging import silent_log
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.blocks import encode_block_header
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import ReloadedContext, server_context
from daybook.wire.transport import Stream
from tests import strategies
from tests.fuzz.bookie_session import Bystander
from tests.fuzz.choices import Choices
from tests.fuzz.codecs import WIRE_ERRORS
from tests.fuzz.target import Target, require
from tests.fuzz.world import BOOKIE, BOOKIE_PORT, SecuredBookie, World, play, settle
from tests.harness.certificates import Authority
from tests.harness.clocks import VirtualClock

_USER, _PASSWORD, _NONCE = "alice", "secret", "a-nonce"
_SECRET = secret_of(_USER, _PASSWORD)
_LEDGER = 1 << 20  # the ledger that strangers try to use
_STRANGERS_MAX = 3
_MODES: tuple[Mode, ...] = ("require", "permit", "off")
_HELLO = bytes.fromhex("160301002f0100002b0303") + bytes(40)


def _secret(user: str) -> bytes | None:
    return _SECRET if user == _USER else None


def run_digest(data: bytes) -> None:
    """Give a token to a server, and to a client as a challenge and as a proof."""
    choices = Choices(data)
    kind, token = choices.below(3), choices.rest()
    if kind == 0:
        user, proof = DigestServer(_NONCE).verify(token, _secret)
        require(user == _USER and proof.startswith(b"rspauth="), "somebody else has entered")
    elif kind == 1:
        response = DigestClient(_USER, _PASSWORD, "c").respond(token)
        require(_PASSWORD.encode() not in response, "a response has the password")
    else:
        client = DigestClient(_USER, _PASSWORD, "c")
        client.respond(DigestServer(_NONCE).challenge)
        client.check(token)


def digest_seeds() -> Mapping[str, bytes]:
    server = DigestServer(_NONCE)
    response = DigestClient(_USER, _PASSWORD, "c").respond(server.challenge)
    _, proof = DigestServer(_NONCE).verify(response, _secret)
    return {
        "response": b"\0" + response,
        "challenge": b"\1" + server.challenge,
        "proof": b"\2" + proof,
    }


def _frame(choices: Choices) -> bytes:
    """Return a frame of any kind, mostly one that means something at an entrance."""
    match choices.below(10):
        case 0:
            return bookie_v3.encode_start_tls(choices.number())
        case 1:
            return bookie.encode_auth(SASL, choices.blob(9) if choices.flag() else b"")
        case 2:
            token = choices.blob(9) if choices.flag() else b""
            return bookie_v3.encode_auth(choices.number() & 0xFF, SASL, token)
        case 3:
            token = DigestClient(_USER, "wrong", "c").respond(DigestServer(_NONCE).challenge)
            return bookie.encode_auth(SASL, token[: choices.number(400) % (len(token) + 1)])
        case 4:
            return bookie.encode_auth("another", choices.blob(9))
        case 5:
            return strategies.add_frame(_LEDGER, choices.below(9))
        case 6:
            add = strategies.add_frame(_LEDGER, 0)
            return encode_block_header(len(add)) + add
        case 7:
            return bookie.encode_read(_LEDGER, choices.number())
        case 8:
            return bookie_v3.encode_bookie_info(1)
        case _:
            garbage = choices.blob(60)
            return U32.pack(len(garbage)) + garbage


def run_entrance(data: bytes) -> None:
    """Step an entrance until it is over."""
    choices = Choices(data)
    mode = choices.pick(_MODES)
    door = Door(mode, tls=choices.flag(), require_tls=False, secret=_secret)
    entrance = Entrance(door, lambda: _NONCE)
    begun = False
    while choices:
        frame = memoryview(_frame(choices))[U32.size :]
        step = entrance.step(frame)
        if step.action is Action.START_TLS:
            require(door.tls and not entrance.encrypted, "TLS begins where there is none")
            entrance.started_tls(None)
        elif step.action in (Action.ENTER, Action.ENTER_HERE):
            require(not entrance.identity, "somebody has proved a password without it")
            require(mode != "require", "somebody has entered without a password")
            require(mode == "off" or not begun, "somebody has entered in the middle of an exchange")
            return
        elif step.action is Action.LEAVE:
            return
        begun = begun or SASL.encode() in step.answer


def entrance_seeds() -> Mapping[str, bytes]:
    return {f"{mode}-{tls}": bytes((mode, tls, *range(10))) for mode in range(3) for tls in (0, 1)}


# -- a whole bookie


@cache
def _secured() -> SecuredBookie:
    """Return the security of all runs: making certificates takes long."""
    directory = Path(tempfile.mkdtemp(prefix="daybook-fuzz-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    files = Authority(directory).files("bookie")
    users = directory / "users"
    users.write_text(f"{_USER}:bookkeeper:{_SECRET.hex()}\n")
    build = partial(server_context, client_certificates="off")
    contexts = ReloadedContext(files, build, clock=VirtualClock(), log=silent_log())

    def settings(config: BookieConfig) -> BookieConfig:
        return msgspec.structs.replace(
            config,
            tls="optional",
            tls_certificate=str(files.certificate),
            tls_key=str(files.key),
            authentication="require",
            users_file=str(users),
            bookie_user=_USER,
            bookie_password_file="/unused",
        )

    server = TlsServer(contexts)
    return SecuredBookie(SecurityOfBookie(server, Users(users, silent_log()), None), settings)


class _Password:
    def read(self) -> str:
        return _PASSWORD


async def _bystander(world: World) -> Bystander:
    frames = await world.connect(BOOKIE, BOOKIE_PORT)
    security = BookieSecurity(None, _USER, cast("PasswordFile", _Password()), Random(5))
    await security.secure(frames, BOOKIE, BOOKIE, 10.0)
    bystander = Bystander(frames)
    world.nursery.start_soon(bystander.run)
    return bystander


async def _strangers(world: World, choices: Choices, bystander: Bystander) -> None:
    streams: list[Stream] = []
    while choices:
        kind = choices.below(8)
        if not streams or (kind == 0 and len(streams) < _STRANGERS_MAX):
            streams.append(await world.dial(BOOKIE, BOOKIE_PORT))
            continue
        stream = choices.pick(streams)
        with suppress(ConnectionLostError, trio.ClosedResourceError):
            match kind:
                case 1:
                    stream.try_send([_HELLO[: choices.below(len(_HELLO) + 1)]])
                case 2:
                    stream.try_send([choices.blob(40)])
                case 3:
                    stream.close()
                    streams.remove(stream)
                case 4:
                    await trio.sleep(choices.pick((0.01, 1.0, 11.0)))
                case _:
                    stream.try_send([_frame(choices)])
        await trio.sleep(0.001)
        bystander.add()
    for stream in streams:
        stream.close()


async def _scenario(world: World, data: bytes) -> None:
    bystander = await _bystander(world)
    bystander.add()
    await _strangers(world, Choices(data), bystander)
    await bystander.check()
    await settle(world)
    assert world.bookie is not None
    statistics = world.bookie.server.statistics()
    require(statistics.connections == 1, "a connection is left over")
    require(statistics.peers_authenticated == 1, "a stranger has authenticated himself")
    with suppress(StoreError):
        world.bookie.store.last_add_confirmed(_LEDGER)
        require(False, "a stranger has written")
    await bystander.check()


def run_session(data: bytes) -> None:
    play(lambda world: _scenario(world, data), with_broker=False, secured=_secured())


def session_seeds() -> Mapping[str, bytes]:
    frames = b"".join(bytes((5, 0, kind, 0)) for kind in range(10))
    return {
        "frames": b"\0" + frames,
        "tls": b"\0" + bytes((5, 0, 0, 0, 1, 0, 51)),
        "half a hello": b"\0" + bytes((5, 0, 0, 0, 1, 0, 20, 4, 0, 2)),
        "any": bytes(range(200)),
    }


TARGETS = (
    Target(name="bookie.digest", run=run_digest, errors=(DigestError,), seeds=digest_seeds),
    Target(
        name="bookie.entrance",
        run=run_entrance,
        errors=WIRE_ERRORS,
        seeds=entrance_seeds,
        steps_a_byte=2_000,
    ),
    Target(
        name="session.entrance",
        run=run_session,
        errors=(),
        seeds=session_seeds,
        input_bytes_max=300,
        steps_max=500_000,
        steps_a_byte=5_000,
        memory_bytes_max=32 << 20,
        examples=30,
        weight=3.0,
    ),
)
