"""The entrance of a bookie, step by step: which frame leads where, in each mode."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.server.entrance import SASL, Action, Door, Entrance, Mode, roles_of
from daybook.wire.digest_md5 import DigestClient, secret_of
from daybook.wire.errors import WireError
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.blocks import decode_block_answer, encode_block_header
from daybook.wire.messages.bookie import AddRun, Answer, AuthAnswer, ReadAnswer, Status
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import PeerCertificate
from tests.bookie.server.peer import add_frame
from tests.harness.certificates import Authority

NONCE = "a-nonce"
ADD, READ = add_frame(7, 3), bookie.encode_read(7, 3)
BLOCK = encode_block_header(2 * len(add_frame(7, 0))) + add_frame(7, 0) + add_frame(7, 1)
BATCH = bookie.encode_batch_read(7, 0, 1, entries_max=1, bytes_max=100)
INFO, TLS = bookie_v3.encode_bookie_info(1), bookie_v3.encode_start_tls(1)
CERTIFICATE = PeerCertificate("broker", "CN=broker", b"")
Frame = bytes


def secret(user: str) -> bytes | None:
    return secret_of("alice", "secret") if user == "alice" else None


DOOR = Door("require", secret=secret)


def repr_of(frame: object) -> str:
    """Return a name for a frame as a parameter of a test."""
    return frame[4:12].hex() if isinstance(frame, bytes) else str(frame)


def entrance(door: Door = DOOR) -> Entrance:
    return Entrance(door, lambda: NONCE)


def body(frame: bytes) -> memoryview:
    return memoryview(frame)[4:]


def step(at: Entrance, frame: bytes) -> tuple[Action, bytes]:
    taken = at.step(body(frame))
    return taken.action, taken.answer[4:]


def decoded(answer: bytes) -> Answer:
    return bookie.decode_answer(memoryview(answer))


def decoded_block(answer: bytes) -> AddRun:
    return decode_block_answer(memoryview(answer))


def auth(wire: str, payload: bytes, plugin: str = SASL) -> bytes:
    if wire == "v2":
        return bookie.encode_auth(plugin, payload)
    return bookie_v3.encode_auth(5, plugin, payload)


def said(wire: str, answer: bytes) -> tuple[str, bytes]:
    """Return plugin and token of an answer to AUTH."""
    if wire == "v2":
        found = decoded(answer)
        assert isinstance(found, AuthAnswer)
        return found.plugin, found.payload
    response = bookie_v3.decode_response(answer)
    assert (response.status, response.header.operation) == (pb.EOK, pb.AUTH)
    assert response.header.txnId == 5
    return response.authResponse.authPluginName, response.authResponse.payload


def response_of(wire: str, at: Entrance, user: str = "alice", password: str = "secret") -> bytes:
    """Begin the exchange; return the response to the challenge."""
    action, answer = step(at, auth(wire, b""))
    assert action is Action.STAY
    plugin, challenge = said(wire, answer)
    assert plugin == SASL
    return DigestClient(user, password, "cnonce").respond(challenge)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("mode", ["permit", "require"])
def test_the_right_password_enters(mode: Mode, wire: str) -> None:
    at = entrance(replace(DOOR, mode=mode))
    response = response_of(wire, at)
    action, answer = step(at, auth(wire, response))
    assert action is Action.ENTER
    assert said(wire, answer)[1].startswith(b"rspauth=")
    assert at.identity == "alice"


@pytest.mark.parametrize("mode", ["permit", "require"])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", "secret")])
def test_wrong_credentials_are_refused_in_each_mode(mode: Mode, user: str, password: str) -> None:
    """In v3 with an answer, in v2 without, as Apache's bookies do."""
    for wire in ("v2", "v3"):
        at = entrance(replace(DOOR, mode=mode))
        action, answer = step(at, auth(wire, response_of(wire, at, user, password)))
        assert action is Action.LEAVE
        assert not at.identity
        if wire == "v2":
            assert not answer
        else:
            assert bookie_v3.decode_response(answer).status == pb.EUA


def test_a_bookie_that_asks_nobody_says_so() -> None:
    for wire in ("v2", "v3"):
        action, answer = step(entrance(Door(tls=True)), auth(wire, b"anything", "any"))
        assert action is Action.ENTER
        assert said(wire, answer) == (bookie.AUTH_DISABLED, b"")


@pytest.mark.parametrize("frame", [ADD, READ, BLOCK, BATCH, INFO], ids=repr_of)
@pytest.mark.parametrize("mode", ["off", "permit"])
def test_requests_enter_where_nobody_has_to_prove_anything(mode: Mode, frame: Frame) -> None:
    at = entrance(replace(DOOR, mode=mode))
    assert step(at, frame) == (Action.ENTER_HERE, b"")
    assert not at.identity


def test_requests_are_refused_as_apaches_bookies_do() -> None:
    action, answer = step(entrance(), ADD)
    assert (action, decoded(answer)) == (
        Action.STAY,
        AddRun(Status.UNAUTHORIZED, 7, 3, 3),
    )
    action, answer = step(entrance(), READ)
    found = decoded(answer)
    assert isinstance(found, ReadAnswer)
    assert action is Action.STAY
    assert found.status == Status.UNAUTHORIZED
    assert not len(found.entry)
    action, answer = step(entrance(), BLOCK)
    assert (action, decoded_block(answer)) == (
        Action.STAY,
        AddRun(Status.UNAUTHORIZED, 7, 0, 1),
    )
    assert step(entrance(), BATCH) == (Action.LEAVE, b"")
    action, answer = step(entrance(), INFO)
    response = bookie_v3.decode_response(answer)
    assert (action, response.status) == (Action.STAY, pb.EUA)
    assert (response.header.operation, response.header.txnId) == (pb.GET_BOOKIE_INFO, 1)


def test_a_peer_that_is_refused_over_and_over_has_to_leave() -> None:
    at = entrance()
    actions = [step(at, READ)[0] for _ in range(101)]
    assert actions == [Action.STAY] * 100 + [Action.LEAVE]


@pytest.mark.parametrize("frame", [ADD, READ, BLOCK, INFO, auth("v3", b"")], ids=repr_of)
def test_nothing_but_start_tls_is_taken_without_tls_where_it_is_required(frame: Frame) -> None:
    for mode in ("off", "require"):
        at = entrance(replace(DOOR, mode=mode, tls=True, require_tls=True))
        action, answer = step(at, frame)
        assert action is Action.LEAVE
        if bookie_v3.is_v3(body(frame)):
            assert bookie_v3.decode_response(answer).status == pb.EUA
        elif frame is BLOCK:
            assert decoded_block(answer).status == Status.UNAUTHORIZED
        else:
            found = decoded(answer)
            assert isinstance(found, AddRun | ReadAnswer)
            assert found.status == Status.UNAUTHORIZED


@pytest.mark.parametrize("frame", [BATCH, auth("v2", b"")], ids=repr_of)
def test_what_v2_cannot_answer_ends_the_connection_without_tls(frame: Frame) -> None:
    at = entrance(replace(DOOR, tls=True, require_tls=True))
    assert step(at, frame) == (Action.LEAVE, b"")


def test_tls_begins_once_and_with_an_answer_in_plain_text() -> None:
    at = entrance(Door(tls=True, require_tls=True))
    action, answer = step(at, TLS)
    response = bookie_v3.decode_response(answer)
    assert (action, response.status) == (Action.START_TLS, pb.EOK)
    assert response.HasField("startTLSResponse")
    at.started_tls(None)
    action, answer = step(at, TLS)
    assert (action, bookie_v3.decode_response(answer).status) == (Action.STAY, pb.EBADREQ)
    assert step(at, READ)[0] is Action.ENTER_HERE


def test_a_bookie_without_tls_answers_bad_request() -> None:
    action, answer = step(entrance(), TLS)
    assert (action, bookie_v3.decode_response(answer).status) == (Action.STAY, pb.EBADREQ)


def test_a_certificate_that_is_allowed_enters() -> None:
    door = Door("require", tls=True, allowed_certificates=("broker",))
    at = entrance(door)
    step(at, TLS)
    at.started_tls(CERTIFICATE)
    assert step(at, READ)[0] is Action.ENTER_HERE
    assert at.identity == "broker"


@pytest.mark.parametrize(
    "certificate", [None, PeerCertificate("", "", b""), PeerCertificate("other", "", b"")]
)
def test_another_certificate_proves_nothing(certificate: PeerCertificate | None) -> None:
    door = Door("require", tls=True, secret=secret, allowed_certificates=("broker", ""))
    at = entrance(door)
    step(at, TLS)
    at.started_tls(certificate)
    assert step(at, READ)[0] is Action.STAY
    assert step(at, auth("v3", response_of("v3", at)))[0] is Action.ENTER
    permits = entrance(replace(door, mode="permit"))
    permits.started_tls(certificate)
    assert step(permits, READ)[0] is Action.ENTER_HERE
    assert not permits.identity


def test_the_roles_of_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def certificate(unit: str) -> PeerCertificate:
        return authority.certificate("client", unit=unit)

    assert roles_of(certificate("0:herd,broker;1:cluster")) == ["herd", "broker"]
    for unit in ("broker", "1:broker", "0:", "0:,"):
        assert roles_of(certificate(unit)) == []
    door = Door("require", tls=True, allowed_roles=("broker",))
    assert door.identity_of(certificate("0:herd, broker")) == "broker"
    assert door.identity_of(certificate("0:herd")) == ""
    assert door.identity_of(None) == ""


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_an_exchange_that_is_out_of_order_is_refused(wire: str) -> None:
    at = entrance()
    assert step(at, auth(wire, b"a token in front of the challenge"))[0] is Action.LEAVE
    at = entrance()
    response_of(wire, at)
    assert step(at, auth(wire, b""))[0] is Action.LEAVE  # It begins a second time.
    at = entrance()
    response = response_of(wire, at)
    other = entrance(DOOR)
    other.new_nonce = lambda: "another-nonce"
    response_of(wire, other)
    assert step(other, auth(wire, response))[0] is Action.LEAVE  # It was said to another bookie.


def test_a_request_in_the_middle_of_an_exchange_does_not_enter() -> None:
    """Also where requests enter without any credentials, and with an allowed certificate."""
    door = replace(DOOR, mode="permit", tls=True, allowed_certificates=("broker",))
    for certificate in (None, CERTIFICATE):
        at = entrance(door)
        at.started_tls(certificate)
        response = response_of("v2", at)
        assert step(at, READ)[0] is Action.STAY
        assert step(at, TLS)[0] is Action.STAY
        assert step(at, auth("v2", response))[0] is Action.ENTER


def test_another_plugin_is_refused() -> None:
    at = entrance()
    action, answer = step(at, auth("v3", b"", "BookieAuthZFactory"))
    assert (action, bookie_v3.decode_response(answer).status) == (Action.STAY, pb.EUA)
    assert step(entrance(), auth("v2", b"", "BookieAuthZFactory")) == (Action.LEAVE, b"")
    only_certificates = Door("permit", tls=True, allowed_certificates=("broker",))
    assert step(entrance(only_certificates), auth("v2", b""))[0] is Action.LEAVE


def test_apaches_client_begins_to_authenticate_itself_before_the_handshake() -> None:
    at = entrance(replace(DOOR, tls=True))
    assert step(at, TLS)[0] is Action.START_TLS
    at.take_before_handshake(body(auth("v2", b"")))
    at.started_tls(None)
    (taken,) = at.taken()
    assert taken.action is Action.STAY
    challenge = said("v2", taken.answer[4:])[1]
    response = DigestClient("alice", "secret", "c").respond(challenge)
    assert step(at, auth("v2", response))[0] is Action.ENTER


@pytest.mark.parametrize(
    "frame",
    [ADD, READ, BLOCK, INFO, TLS, auth("v2", b"x"), auth("v3", b"x"), b"\0\0\0\1\1"],
    ids=repr_of,
)
def test_nothing_else_may_be_said_before_the_handshake(frame: Frame) -> None:
    """Somebody on the way could have written it."""
    at = entrance(replace(DOOR, tls=True))
    step(at, TLS)
    with pytest.raises(WireError):
        at.take_before_handshake(body(frame))
    at.take_before_handshake(body(auth("v3", b"")))
    with pytest.raises(WireError):
        at.take_before_handshake(body(auth("v3", b"")))


@given(st.binary(max_size=100), st.sampled_from(["off", "permit", "require"]), st.booleans())
def test_garbage_ends_in_an_answer_or_a_wire_error(
    garbage: bytes, mode: Mode, challenged: bool
) -> None:
    at = entrance(replace(DOOR, mode=mode, tls=True))
    if challenged and mode != "off":
        response_of("v2", at)
    try:
        taken = at.step(memoryview(garbage))
    except WireError:
        return
    if challenged and mode != "off":
        assert taken.action in (Action.STAY, Action.LEAVE)
    elif mode == "require":
        assert taken.action not in (Action.ENTER, Action.ENTER_HERE)
