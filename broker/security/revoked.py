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
    found = _Lines()
    for number, line in enumerate(content.split(b"\n"), 1):
        if why := found.add(line):
            raise ValueError(f"line {number} is wrong: {why}")
    return Revoked(frozenset(found.ids), frozenset(found.digests), found.before_s)


def problems(content: bytes) -> dict[int, str]:
    """Return everything that keeps a list from being used, by the numbers of lines."""
    lines, found = content.split(b"\n"), _Lines()
    wrong = {number: why for number, line in enumerate(lines, 1) if (why := found.add(line))}
    if lines[-1] and len(lines) not in wrong:
        wrong[len(lines)] = "it is not complete: end it with a line feed"
    return wrong


class _Lines:
    """The content of the lines so far."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.digests: set[bytes] = set()
        self.before_s: dict[str, float] = {}

    def add(self, line: bytes) -> str:
        """Take a line; return what is wrong with it, "" if nothing is."""
        try:
            self._add(line.decode())
        except UnicodeDecodeError:
            return "it is not UTF-8"
        except ValueError as error:
            return str(error)
        return ""

    def _add(self, line: str) -> None:
        kind, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match kind:
            case "":
                pass
            case _ if kind.startswith("#"):
                pass
            case "id" if rest:
                self.ids.add(rest)
            case "digest":
                self.digests.add(_digest(rest))
            case "role":
                role, time_s = _role_and_time(rest)
                self.before_s[role] = max(time_s, self.before_s.get(role, time_s))
            case _:
                raise ValueError("it is not `id ID`, `digest SHA256` or `role ROLE TIME`")


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
