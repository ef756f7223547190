"""The list of revoked tokens: a text with one line for a token, or for all older ones of a role.

    # a comment
    id 5f0c2a6e                         the token with this id (the claim `jti`)
    digest 9f86d081...                  the token whose signed part has this SHA-256
    role alice 2026-11-28T06:00:00Z     all tokens of the role that were issued before (`iat`)

The time has a zone, or is a number of seconds since 1970.  A token that does not say when it was
issued counts as issued before any time: unknown is not "later".

The module is pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from daybook.broker.security.identity import Identity

FILE_BYTES_MAX = 1 << 20
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Revoked:
    ids: frozenset[str] = frozenset()
    digests: frozenset[bytes] = frozenset()
    before_s: Mapping[str, float] = field(default_factory=dict[str, float])  # by role

    def __len__(self) -> int:
        return len(self.ids) + len(self.digests) + len(self.before_s)

    def covers(self, identity: Identity) -> bool:
        """Return True if the token that has proven this identity is revoked."""
        token = identity.token
        if token is None:
            return False
        if token.id in self.ids or token.digest in self.digests:
            return True
        before_s = self.before_s.get(identity.role)
        return before_s is not None and (token.issued_s is None or token.issued_s < before_s)


def parse(content: bytes) -> Revoked:
    """Return the list.  Raise ValueError, which names the wrong line and never quotes it."""
    if content and not content.endswith(b"\n"):
        number = content.count(b"\n") + 1
        raise ValueError(f"line {number} is not complete: end it with a line feed")
    ids: set[str] = set()
    digests: set[bytes] = set()
    before_s: dict[str, float] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            kind, _, rest = line.decode().strip().partition(" ")
            rest = rest.strip()
            match kind:
                case "":
                    pass
                case _ if kind.startswith("#"):
                    pass
                case "id" if rest:
                    ids.add(rest)
                case "digest":
                    digests.add(_digest(rest))
                case "role":
                    role, time_s = _role_and_time(rest)
                    before_s[role] = max(time_s, before_s.get(role, time_s))
                case _:
                    raise ValueError("it is not `id ID`, `digest SHA256` or `role ROLE TIME`")
        except UnicodeDecodeError:
            raise ValueError(f"line {number} is wrong: it is not UTF-8") from None
        except ValueError as error:
            raise ValueError(f"line {number} is wrong: {error}") from None
    return Revoked(frozenset(ids), frozenset(digests), before_s)


def _digest(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES:
        raise ValueError("a digest has 64 hexadecimal digits, as `daybook tokens show` prints it")
    return digest


def _role_and_time(text: str) -> tuple[str, float]:
    role, _, time = text.rpartition(" ")
    role = role.strip()
    if not role:
        raise ValueError("a role stands before a time, as in `role alice 2026-11-28T06:00:00Z`")
    if time.isascii() and time.isdigit() and len(time) <= 12:
        return role, float(time)
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(
            "the time has to be such as 2026-11-28T06:00:00Z, or a number of seconds since 1970"
        )
    return role, found.timestamp()
