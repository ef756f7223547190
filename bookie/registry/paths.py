"""The paths of all records in the metadata store, which are BookKeeper's.

    <root>                        /ledgers unless told otherwise
      LAYOUT                      which layout this is
      INSTANCEID                  the id of the cluster, in the cookie of each bookie
      available/<bookie id>       ephemeral: a bookie that can be written to
      available/readonly/<id>     ephemeral: a bookie that serves reads only
      cookies/<bookie id>         a bookie that belongs to the cluster, running or not
      idgen/ID-<n>, idgen-long    counters from which ledger ids are allocated
      00/0001/L2345               the metadata of ledger 12345: ids below 2**31 - 1
      000/0000/0021/4748/L3647    the metadata of ledgers with larger ids
      underreplication            ledgers that lack copies, for the replication workers

Nothing here sends requests to the store.
"""

import re
from dataclasses import dataclass

from daybook.bookie.errors import MalformedRecordError

READONLY = "readonly"
SHORT_ID_MAX = (1 << 31) - 2

_BOOKIE_ID = re.compile(r"[A-Za-z0-9:_.\-]+")
_DIGITS_MAX = 10


def parse_number(text: str) -> int:
    """Return the number in a text of another process; 2**62, which no caller accepts, if none."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if plain else 1 << 62


def check_bookie_id(bookie_id: str) -> str:
    """Return the id; raise MalformedRecordError if others could not store or parse it."""
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id == READONLY:
        raise MalformedRecordError(f"{bookie_id!r} cannot be the id of a bookie")
    return bookie_id


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """The paths below one root."""

    root: str = "/ledgers"

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def available(self) -> str:
        return f"{self.root}/available"

    @property
    def readonly(self) -> str:
        return f"{self.root}/available/{READONLY}"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    @property
    def idgen(self) -> str:
        return f"{self.root}/idgen"

    @property
    def idgen_long(self) -> str:
        return f"{self.root}/idgen-long"

    @property
    def underreplication(self) -> str:
        return f"{self.root}/underreplication"

    def ledger(self, ledger_id: int) -> str:
        assert 0 <= ledger_id < 1 << 63
        if ledger_id <= SHORT_ID_MAX:
            digits = f"{ledger_id:010d}"
            parts = [digits[:2], digits[2:6], "L" + digits[6:]]
        else:
            digits = f"{ledger_id:019d}"
            parts = [digits[:3], digits[3:7], digits[7:11], digits[11:15], "L" + digits[15:]]
        return "/".join([self.root, *parts])

    def registration(self, bookie_id: str, *, read_only: bool = False) -> str:
        return f"{self.readonly if read_only else self.available}/{bookie_id}"

    def starts(self, bookie_id: str) -> str:
        return f"{self.underreplication}/starts/{bookie_id}"

    def cookie(self, bookie_id: str) -> str:
        return f"{self.cookies}/{bookie_id}"
