"""Access control lists of records: which identities may do what with a record.

An identity is written `scheme:id`, as ZooKeeper's tools write it:

    world:anyone              everybody
    digest:USER:HASH          a user and the hash of its password (`digest_identity`)
    x509:CN=broker-1          the subject of a client's certificate
    sasl:USER                 a user of SASL
    auth:                     in a request only: all identities of the session that sends it

The rights are letters: c (create children), d (delete children), r (read the value and the list of
children), w (write the value), a (read and replace this list).
"""

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from typing import TypeAlias

WORLD = "world:anyone"
OWN = "auth:"
ALL = "cdrwa"
READ, WRITE, CREATE, DELETE, ADMIN = "r", "w", "c", "d", "a"
_SCHEMES = frozenset({"world", "digest", "x509", "sasl", "ip", "auth"})


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one identity."""

    identity: str
    rights: str  # letters of "cdrwa", in this order

    def __str__(self) -> str:
        return f"{self.identity}:{self.rights}"


Acl: TypeAlias = tuple[Grant, ...]
OPEN_ACL: Acl = (Grant(WORLD, ALL),)


def digest_identity(user: str, password: str) -> str:
    """Return the identity of a user with a password; ZooKeeper compares the hash."""
    # SHA-1 is what ZooKeeper's scheme `digest` prescribes.
    digest = hashlib.sha1(f"{user}:{password}".encode()).digest()  # noqa: S324
    return f"digest:{user}:{b64encode(digest).decode()}"


def check_identity(identity: str) -> str:
    """Return an identity that a list may name.  Raise ValueError for any other text."""
    scheme, _, rest = identity.partition(":")
    if scheme not in _SCHEMES - {"world", "auth"} or not rest:
        raise ValueError(
            f"{identity!r} is not an identity such as digest:USER:HASH, sasl:USER or x509:CN=NAME"
        )
    if scheme == "digest":
        user, _, hashed = rest.partition(":")
        if not user or len(hashed) != 28 or not hashed.endswith("="):
            raise ValueError(
                f"{identity!r} is not digest:USER:HASH: `daybook cluster identity` prints the"
                " identity of a user and its password"
            )
    return identity


def may(acl: Acl, identities: frozenset[str], right: str) -> bool:
    """Return True if one of these identities, or everybody, has the right."""
    return any(
        right in grant.rights and (grant.identity == WORLD or grant.identity in identities)
        for grant in acl
    )


def without_passwords(identity: str) -> str:
    """Return the identity for people: without the hash, which would help to guess a password."""
    scheme, _, rest = identity.partition(":")
    return f"{scheme}:{rest.partition(':')[0]}" if scheme == "digest" else identity


def denial(path: str, has_identity: bool) -> str:
    """Return a sentence about a refusal, which says what to do."""
    if not has_identity:
        return (
            f"the metadata store refuses access to {path}, because this process has no identity:"
            " set zookeeper_user and zookeeper_password_file (commands: --zookeeper-user,"
            " --zookeeper-password-file)"
        )
    return (
        f"the metadata store refuses access to {path}, because the identity of this process has no"
        " right to it: check zookeeper_user and the password, or give the identity access with"
        " `daybook cluster secure-metadata --also IDENTITY` (`daybook cluster identity` prints it)"
    )
