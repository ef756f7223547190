"""Messages between clients and bookies: the bytes of the v2 protocol, by the real codecs.

Payloads are a function of the entry id, so the right contents of each copy are known.
"""

from dataclasses import dataclass

from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.reader import verdict_of
from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import Entry, decode_entry, peek_ids, peek_lac
from daybook.wire.errors import WireError
from daybook.wire.messages.bookie import (
    LAST_ENTRY,
    Add,
    Read,
    ReadAnswer,
    Status,
    decode_add_answers,
    decode_answer,
    decode_request,
)

LEDGER_ID = 7
DIGESTER = Digester(DigestType.CRC32C, b"")


def payload_of(entry_id: int) -> bytes:
    return b"payload %d" % entry_id


def length_at(entry_id: int) -> int:
    """Return the length of the ledger up to and including that entry."""
    return sum(len(payload_of(each)) for each in range(entry_id + 1))


# -- requests


@dataclass(frozen=True, slots=True)
class Asked:
    """The subject of a request: an entry, or LAST_ENTRY."""

    is_add: bool
    entry_id: int
    lac: int = -1

    def __str__(self) -> str:
        if self.is_add:
            return f"add {self.entry_id} (lac {self.lac})"
        return "fence, last entry?" if self.entry_id == LAST_ENTRY else f"read {self.entry_id}"


def decoded(frame: bytes) -> Add | Read:
    request = decode_request(memoryview(frame)[4:])  # after the length
    assert isinstance(request, Add | Read)
    return request


def asked(frame: bytes) -> Asked:
    request = decoded(frame)
    if isinstance(request, Add):
        return Asked(True, peek_ids(request.entry)[1], peek_lac(request.entry))
    return Asked(False, request.entry_id)


# -- answers


@dataclass(frozen=True, slots=True)
class Said:
    """The meaning of an answer to a client, as its shell decodes it."""

    is_add: bool
    entry_id: int  # as requested
    status: Status
    entry: bytes = b""

    def __str__(self) -> str:
        if self.is_add:
            return f"add {self.entry_id}: {self.status.name}"
        if self.status is not Status.OK:
            return f"read {self.entry_id}: {self.status.name}"
        found = self.decoded()
        if found is None:
            return f"read {self.entry_id}: damaged"
        lac = f" (lac {found.lac})" if self.entry_id == LAST_ENTRY else ""
        return f"read {self.entry_id}: entry {found.entry_id}{lac}"

    @property
    def verdict(self) -> Verdict:
        if self.status is not Status.OK:
            return verdict_of(self.status)
        return Verdict.FOUND if self.decoded() is not None else Verdict.UNKNOWN

    def decoded(self) -> Entry | None:
        wanted = None if self.entry_id == LAST_ENTRY else self.entry_id
        try:
            return decode_entry(memoryview(self.entry), DIGESTER, LEDGER_ID, wanted)
        except WireError:
            return None


def said(frame: bytes) -> Said:
    runs, others = decode_add_answers([memoryview(frame)[4:]])
    if runs:
        return Said(True, runs[0].first, Status(runs[0].status))
    answer = decode_answer(others[0])
    assert isinstance(answer, ReadAnswer)
    return Said(False, answer.entry_id, Status(answer.status), bytes(answer.entry))
