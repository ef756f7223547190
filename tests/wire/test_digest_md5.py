"""DIGEST-MD5 with the examples of RFC 2831, and everything that either side must refuse."""

from contextlib import suppress
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.digest_md5 import (
    TOKEN_BYTES_MAX,
    DigestClient,
    DigestError,
    DigestServer,
    parse,
    secret_of,
)

HOST = "elwood.innosoft.com"
EXAMPLES = [  # from section 4 of the RFC
    (
        f"imap/{HOST}",
        "OA6MG9tEQGm2hh",
        "OA6MHXh6VqTrRk",
        "d388dad90d4bbd760a152321f2143af7",
        "ea40f60335c427b5527b84dbabcdfffd",
    ),
    (
        f"acap/{HOST}",
        "OA9BSXrbuRhWay",
        "OA9BSuZWMSpW8m",
        "6084c6db3fede7352c551284490fd0fc",
        "2f0b3d7c3c2e486600ef710726aa2eae",
    ),
]


def look_up(user: str) -> bytes | None:
    return secret_of("alice", "secret") if user == "alice" else None


def exchange(user: str, password: str) -> tuple[DigestServer, DigestClient, bytes]:
    server, client = DigestServer("nonce-of-the-server"), DigestClient(user, password, "cnonce")
    return server, client, client.respond(server.challenge)


@pytest.mark.parametrize(("uri", "nonce", "cnonce", "response", "rspauth"), EXAMPLES)
def test_the_examples_of_the_rfc(
    uri: str, nonce: str, cnonce: str, response: str, rspauth: str
) -> None:
    client = DigestClient("chris", "secret", cnonce, uri=uri)
    challenge = (
        f'realm="{HOST}",nonce="{nonce}",qop="auth",algorithm=md5-sess,charset=utf-8'.encode()
    )
    answer = client.respond(challenge)
    assert parse(answer)["response"] == response
    client.check(f"rspauth={rspauth}".encode())

    server = DigestServer(nonce, realm=HOST, uri=uri)
    user, proof = server.verify(answer, lambda _: secret_of("chris", "secret", HOST))
    assert (user, proof) == ("chris", f"rspauth={rspauth}".encode())


def test_the_right_password_proves_both_sides_to_each_other() -> None:
    server, client, answer = exchange("alice", "secret")
    user, proof = server.verify(answer, look_up)
    assert user == "alice"
    client.check(proof)
    assert b"secret" not in answer


@pytest.mark.parametrize(("user", "password"), [("alice", "Secret"), ("bob", "secret")])
def test_a_wrong_password_and_an_unknown_user_get_the_same_error(user: str, password: str) -> None:
    server, _, answer = exchange(user, password)
    with pytest.raises(DigestError, match=r"^the user or the password is wrong$"):
        server.verify(answer, look_up)


def test_the_secret_of_an_unknown_user_is_no_password() -> None:
    """An unknown user is compared with a decoy, which must let nobody in."""
    server, _, answer = exchange("bob", "any")
    with pytest.raises(DigestError):
        server.verify(answer, lambda _: None)


def test_a_response_counts_for_its_own_challenge_only() -> None:
    _, _, answer = exchange("alice", "secret")
    with pytest.raises(DigestError, match="another nonce"):
        DigestServer("another").verify(answer, look_up)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (b"nc=00000001", b"nc=00000002", "another nc"),
        (b",qop=auth", b",qop=auth-conf", "another qop"),
        (b'"bookkeeper"', b'"elsewhere"', "another realm"),
        (b"bookkeeper/bookkeeper", b"imap/bookkeeper", "another service"),
        (b",qop=auth", b',qop=auth,authzid="root"', "another user"),
        (b"cnonce=", b"other=", "lacks cnonce"),
        (b"response=", b"response=0", "lacks cnonce or response"),
        (b'username="alice"', b'username=""', "names no user"),
        (b'username="alice"', b'username="a\nb"', "names no user"),
        (b",qop=auth", b",qop=auth,username=bob", "twice"),
        (b",qop=auth", b",qop=auth,,", "no list"),
        (b",qop=auth", b",qop", "no list"),
        (b",qop=auth", b"," + b"x=y," * TOKEN_BYTES_MAX, "allowed"),
        (b'username="alice"', b'username="\xff"', "no text"),
    ],
)
def test_a_response_that_deviates_is_refused(before: bytes, after: bytes, why: str) -> None:
    server, _, answer = exchange("alice", "secret")
    assert before in answer
    with pytest.raises(DigestError, match=why):
        server.verify(answer.replace(before, after, 1), look_up)


def test_a_response_with_the_identity_of_its_own_user_is_accepted() -> None:
    """Java's client asks for the user that it proves, which is then a part of the hash."""
    nonce, cnonce = "nonce-of-the-server", "cnonce"
    java = (
        b'charset=utf-8,username="alice",realm="bookkeeper",nonce="nonce-of-the-server",'
        b'nc=00000001,cnonce="cnonce",digest-uri="bookkeeper/bookkeeper",maxbuf=65536,'
        b'response=%s,qop=auth,authzid="alice"'
    )
    a1 = md5(
        b":".join((secret_of("alice", "secret"), nonce.encode(), cnonce.encode(), b"alice"))
    ).hexdigest()
    a2 = md5(b"AUTHENTICATE:bookkeeper/bookkeeper").hexdigest()
    proof = md5(f"{a1}:{nonce}:00000001:{cnonce}:auth:{a2}".encode()).hexdigest()
    assert DigestServer(nonce).verify(java % proof.encode(), look_up)[0] == "alice"


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    server, client, answer = exchange("alice", "secret")
    _, proof = server.verify(answer, look_up)
    for wrong in (b"", b"rspauth=", b"rspauth=" + b"0" * 32, proof[:-1], b"\xff"):
        with pytest.raises(DigestError):
            client.check(wrong)
    with pytest.raises(DigestError):
        DigestClient("alice", "secret", "cnonce").check(proof)  # It has answered no challenge.


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b'nonce="n",algorithm=md5',
        b"algorithm=md5-sess",
        b'nonce="n",algorithm=md5-sess,qop="auth-conf"',
        b"\0",
    ],
)
def test_a_challenge_that_is_none_is_refused(challenge: bytes) -> None:
    with pytest.raises(DigestError):
        DigestClient("alice", "secret", "cnonce").respond(challenge)


def test_quotes_and_letters_of_all_kinds_survive() -> None:
    for user in ('a"b\\c', "jürgen", "日本"):
        server, client, answer = exchange(user, 'pass"wörd日')

        def known(asked: str, user: str = user) -> bytes | None:
            return secret_of(user, 'pass"wörd日') if asked == user else None

        found, proof = server.verify(answer, known)
        assert found == user
        client.check(proof)


@given(st.binary(max_size=200))
def test_no_token_raises_anything_else(token: bytes) -> None:
    for call in (
        lambda: DigestServer("n").verify(token, look_up),
        lambda: DigestClient("alice", "secret", "c").respond(token),
        lambda: DigestClient("alice", "secret", "c").check(token),
    ):
        with suppress(DigestError):
            call()
