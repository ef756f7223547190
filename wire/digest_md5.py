"""The SASL mechanism DIGEST-MD5 (RFC 2831): both sides, as a protocol without any I/O.

    server = DigestServer(nonce)                       client = DigestClient(user, password, cnonce)
    server.challenge            ->                     answer = client.respond(challenge)
    user, proof = server.verify(answer, look_up)       client.check(proof)

Both sides prove that they know the password, and neither sends it.  The server needs no password,
only `secret_of(user, password)`, which is what Apache's `htdigest` writes for the realm.

Bookies use the service, the realm and the server name `bookkeeper`, as Apache's do.  Only the
quality `auth` is spoken: nothing behind the exchange is signed or encrypted, which TLS does.
Everything wrong raises `DigestError`, whose text quotes neither secrets nor what the peer has sent.
"""

import re
from collections.abc import Callable
from hashlib import md5
from hmac import compare_digest

REALM = "bookkeeper"
MECHANISM_URI = f"bookkeeper/{REALM}"
TOKEN_BYTES_MAX = 4096  # RFC 2831 allows no larger response, and no larger challenge than half
SECRET_BYTES = 16
USER_CHARS_MAX = 256

_DIRECTIVE = re.compile(
    r'[ \t\r\n]*([A-Za-z-]{1,32})[ \t\r\n]*=[ \t\r\n]*(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))'
    r"[ \t\r\n]*(?:,|$)",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_HEX = re.compile("[0-9a-f]{32}")
_FIRST = "00000001"  # the count of this nonce's uses: a nonce is used once
_DECOY = bytes(SECRET_BYTES)


class DigestError(Exception):
    """The other side broke the mechanism, or could not prove that it knows the password."""


def secret_of(user: str, password: str, realm: str = REALM) -> bytes:
    """Return the hash that stands for a password."""
    return _md5(b":".join((_text(user), _text(realm), _text(password))))


class DigestServer:
    """The side of the server, for one exchange.  `nonce` is random, and never used before."""

    def __init__(self, nonce: str, *, realm: str = REALM, uri: str = MECHANISM_URI) -> None:
        self._nonce = nonce
        self._realm = realm
        self._uri = uri

    @property
    def challenge(self) -> bytes:
        return (
            f"realm={_quoted(self._realm)},nonce={_quoted(self._nonce)},"
            'qop="auth",charset=utf-8,algorithm=md5-sess'
        ).encode()

    def verify(self, response: bytes, look_up: Callable[[str], bytes | None]) -> tuple[str, bytes]:
        """Return the user, and the proof that this side knows the secret, too.

        `look_up` returns the secret of a user, or None.  An unknown user takes as long as a known
        one with a wrong password, and gets the same error.
        """
        given = parse(response)
        user = given.get("username", "")
        wanted = {"nonce": self._nonce, "nc": _FIRST, "qop": "auth", "realm": self._realm}
        for name, value in wanted.items():
            if given.get(name, value if name in ("qop", "realm") else "") != value:
                raise DigestError(f"the response has another {name} than the challenge")
        if given.get("digest-uri", "").lower() != self._uri:
            raise DigestError(f"the response is for another service than {self._uri}")
        if given.get("authzid", user) != user:
            raise DigestError("the response asks for another user than it proves")
        if not 0 < len(user) <= USER_CHARS_MAX or not user.isprintable():
            raise DigestError("the response names no user")
        cnonce, proof = given.get("cnonce", ""), given.get("response", "")
        if not cnonce or not _HEX.fullmatch(proof):
            raise DigestError("the response lacks cnonce or response")
        secret = look_up(user)
        session = _session_key(
            secret or _DECOY, self._nonce, cnonce, user if "authzid" in given else None
        )
        right = _proof(session, self._nonce, cnonce, f"AUTHENTICATE:{given['digest-uri']}")
        if not compare_digest(right, proof) or secret is None:
            raise DigestError("the user or the password is wrong")
        answer = _proof(session, self._nonce, cnonce, f":{given['digest-uri']}")
        return user, f"rspauth={answer}".encode()


class DigestClient:
    """The side of the client, for one exchange.  `cnonce` is random."""

    def __init__(self, user: str, password: str, cnonce: str, *, uri: str = MECHANISM_URI) -> None:
        self._user = user
        self._password = password
        self._cnonce = cnonce
        self._uri = uri
        self._expected = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the response to a challenge."""
        given = parse(challenge)
        nonce = given.get("nonce", "")
        if not nonce or given.get("algorithm", "").lower() != "md5-sess":
            raise DigestError("the challenge is not one of DIGEST-MD5")
        qualities = [each.strip() for each in given.get("qop", "auth").split(",")]
        if "auth" not in qualities:
            raise DigestError("the challenge demands that all messages are signed or encrypted")
        realm = given.get("realm", "")
        secret = secret_of(self._user, self._password, realm)
        session = _session_key(secret, nonce, self._cnonce, None)
        proof = _proof(session, nonce, self._cnonce, f"AUTHENTICATE:{self._uri}")
        self._expected = _proof(session, nonce, self._cnonce, f":{self._uri}")
        charset = "charset=utf-8," if given.get("charset", "").lower() == "utf-8" else ""
        return (
            f"{charset}username={_quoted(self._user)},realm={_quoted(realm)},"
            f"nonce={_quoted(nonce)},nc={_FIRST},cnonce={_quoted(self._cnonce)},"
            f"digest-uri={_quoted(self._uri)},maxbuf=65536,response={proof},qop=auth"
        ).encode()

    def check(self, proof: bytes) -> None:
        """Raise DigestError unless the server has proved that it knows the password, too."""
        given = parse(proof).get("rspauth", "")
        if not self._expected or not compare_digest(given.encode(), self._expected.encode()):
            raise DigestError("the server has not proved that it knows the password")


def parse(token: bytes) -> dict[str, str]:
    """Return the directives of a token.  Raise DigestError, also if one is there twice."""
    if len(token) > TOKEN_BYTES_MAX:
        raise DigestError(f"a token has {len(token)} bytes, and {TOKEN_BYTES_MAX} are allowed")
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise DigestError("a token is no text in UTF-8") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        directive = _DIRECTIVE.match(text, at)
        if directive is None:
            raise DigestError("a token is no list of directives")
        name, quoted, plain = directive.groups()
        if found.setdefault(name.lower(), value := _plain(quoted, plain)) != value:
            raise DigestError("a token has a directive twice")
        at = directive.end()
    return found


def _plain(quoted: str | None, plain: str | None) -> str:
    return plain or "" if quoted is None else _ESCAPED.sub(r"\1", quoted)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(text: str) -> bytes:
    """Encode a part of a secret: in ISO 8859-1 where that can express it, as the RFC demands."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> bytes:
    return md5(data, usedforsecurity=False).digest()


def _session_key(secret: bytes, nonce: str, cnonce: str, authzid: str | None) -> str:
    parts = [secret, nonce.encode(), cnonce.encode()]
    if authzid is not None:
        parts.append(authzid.encode())
    return _md5(b":".join(parts)).hex()


def _proof(session: str, nonce: str, cnonce: str, what: str) -> str:
    hashed = _md5(what.encode()).hex()
    return _md5(f"{session}:{nonce}:{_FIRST}:{cnonce}:auth:{hashed}".encode()).hex()
