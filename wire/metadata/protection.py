"""The protection of a tree: which access control lists its records have, as the tree itself says.

    /daybook/security               JSON, readable by everybody: generation and step
    /daybook/security/acl-<n>       JSON of generation n: the identities.  Strangers cannot read it:
                                    the hash of a password helps to guess the password
    /daybook/processes/<session>    ephemeral: what a process of Daybook has heard; see `announce`

The steps, of which each leads back to the one before:

    open         everybody may do everything; so it is without a record
    protecting   new records get lists; older ones are being given them
    protected    all records have lists
    required     every program of Daybook needs an identity, also one that only reads
    opening      new records are open; older ones are being opened

A list grants everything to the identities of the tree.  Everybody may read, except the metadata of
ledgers, which hold the passwords of ledgers.  Lists come from these records alone, and from no
setting: a process with an old setting cannot create open records in a protected tree.
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import msgspec

from daybook.wire.metadata.acl import ALL, OPEN_ACL, READ, WORLD, Acl, Grant

PATH = "/daybook/security"
PROCESSES = "/daybook/processes"
_FORMAT = 1


class Step(Enum):
    OPEN = "open"
    PROTECTING = "protecting"
    PROTECTED = "protected"
    REQUIRED = "required"
    OPENING = "opening"


class ProtectionError(ValueError):
    """A record of the protection cannot be parsed."""


class _StepRecord(msgspec.Struct, rename="camel"):
    version: int
    generation: int
    step: Step
    ledgers_roots: tuple[str, ...] = ()


class _IdentitiesRecord(msgspec.Struct, rename="camel"):
    version: int
    identities: tuple[str, ...]
    admins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protection:
    """The protection in one generation."""

    generation: int = 0
    step: Step = Step.OPEN
    ledgers_roots: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()  # those of processes
    admins: tuple[str, ...] = ()  # those of operators
    known: bool = field(default=True)  # False: we may not read who has which rights

    @property
    def closed(self) -> bool:
        """Return True if new records get lists."""
        return self.step in (Step.PROTECTING, Step.PROTECTED, Step.REQUIRED)

    def acl(self, path: str) -> Acl:
        """Return the list of a record."""
        if not self.closed or not self.known:
            return OPEN_ACL
        return self.private if self._is_private(path) else self._readable

    @cached_property
    def private(self) -> Acl:
        """The list of a record that strangers may not read."""
        return tuple(Grant(identity, ALL) for identity in self.everybody)

    @property
    def everybody(self) -> tuple[str, ...]:
        """All identities that have all rights."""
        return tuple(dict.fromkeys((*self.identities, *self.admins)))

    @property
    def readable(self) -> Acl:
        """The list of a record that strangers may read."""
        return self._readable

    @cached_property
    def _readable(self) -> Acl:
        return (*self.private, Grant(WORLD, READ))

    @cached_property
    def _ledgers(self) -> re.Pattern[str]:
        roots = "|".join(map(re.escape, self.ledgers_roots)) or r"(?!)"
        return re.compile(rf"(?:{roots})(?:/\d+)*/L\d+")

    def _is_private(self, path: str) -> bool:
        return path.startswith(f"{PATH}/") or self._ledgers.fullmatch(path) is not None

    def encode(self) -> bytes:
        """Return the value of the record that everybody may read."""
        return msgspec.json.encode(
            _StepRecord(_FORMAT, self.generation, self.step, self.ledgers_roots)
        )

    def encode_identities(self) -> bytes:
        return msgspec.json.encode(_IdentitiesRecord(_FORMAT, self.identities, self.admins))

    @property
    def identities_path(self) -> str:
        return identities_path(self.generation)


def identities_path(generation: int) -> str:
    return f"{PATH}/acl-{generation:010d}"


def decode(value: bytes | None, identities: bytes | None = None) -> Protection:
    """Parse the records; None: it is not there, or not readable.  Raise ProtectionError."""
    if value is None:
        return Protection()
    try:
        found = msgspec.json.decode(value, type=_StepRecord)
        who = (
            None if identities is None else msgspec.json.decode(identities, type=_IdentitiesRecord)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtectionError(f"{PATH} cannot be parsed: {error}") from None
    if found.version != _FORMAT:
        raise ProtectionError(
            f"{PATH} has version {found.version}, and this release knows version {_FORMAT}: use a"
            " newer release"
        )
    return Protection(
        found.generation,
        found.step,
        found.ledgers_roots,
        () if who is None else who.identities,
        () if who is None else who.admins,
        known=who is not None or found.step in (Step.OPEN, Step.OPENING),
    )
