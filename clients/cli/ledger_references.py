"""Find the topics and subscriptions that refer to a ledger, from their records in ZooKeeper."""

from collections.abc import Sequence
from dataclasses import dataclass

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.records import cursor_path, log_path, owner_of, parse
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.topics import url_decode


@dataclass(frozen=True, slots=True)
class LedgerReferences:
    """The references to one ledger.  If it is not `listed`, it is an orphan or no topic owns it."""

    owner: str | None
    listed: bool
    holders: Sequence[str]  # subscriptions that still need it
    sentences: Sequence[str]

    def as_record(self) -> dict[str, object]:
        return {
            "owner": self.owner,
            "listed": self.listed,
            "holders": list(self.holders),
            "reasons": list(self.sentences),
        }


async def references_to(
    store: MetadataStore, ledger_id: int, metadata: LedgerMetadata
) -> LedgerReferences:
    owner = owner_of(metadata.custom)
    if owner is None:
        return LedgerReferences(
            None,
            False,
            (),
            ("No topic owns it: it stays until its creator deletes it.",),
        )
    log_name, cursor = owner
    try:
        path = log_path(log_name)
    except InvalidNameError:
        return LedgerReferences(
            log_name, False, (), (f"{log_name!r} is not a valid topic: nobody needs it.",)
        )
    record = await store.get(path)
    if record is None:
        return LedgerReferences(
            log_name,
            False,
            (),
            (f"Its topic {log_name} is gone: the ledger is an orphan, and nobody needs it.",),
        )
    if cursor is not None:
        return await _cursor_references(store, ledger_id, log_name, url_decode(cursor))
    listed = parse(ManagedLedgerInfo(), record.value, log_name)
    ids = [each.ledgerId for each in listed.ledgerInfo]
    return await _log_references(store, ledger_id, log_name, path, ids)


async def _cursor_references(
    store: MetadataStore, ledger_id: int, log_name: str, cursor: str
) -> LedgerReferences:
    what = f"subscription {cursor} of {log_name}"
    record = await store.get(cursor_path(log_name, cursor))
    if record is None:
        return LedgerReferences(
            what, False, (), (f"It belonged to the {what}, which is gone: nobody needs it.",)
        )
    info = parse(ManagedCursorInfo(), record.value, what)
    if info.cursorsLedgerId == ledger_id:
        return LedgerReferences(
            what, True, (cursor,), (f"The {what} stores its acknowledgements there.",)
        )
    return LedgerReferences(
        what,
        False,
        (),
        (
            f"The {what} uses another ledger now: the broker that owns the topic will delete this"
            " one.",
        ),
    )


async def _log_references(
    store: MetadataStore, ledger_id: int, log_name: str, path: str, ids: Sequence[int]
) -> LedgerReferences:
    if ledger_id not in ids:
        if ids and ledger_id > max(ids):
            why = (
                f"{log_name} may be about to list it: its owner has just created it, or died then."
            )
        else:
            why = (
                f"{log_name} does not list it, or no longer does: the broker that owns the topic"
                " will delete it."
            )
        return LedgerReferences(log_name, False, (), (why,))
    if ledger_id == ids[-1]:
        why = f"It is the last ledger of {log_name}: new messages go there."
        return LedgerReferences(log_name, True, (), (why,))
    holders: list[str] = []
    sentences: list[str] = []
    for name in await store.get_children(path) or []:
        record = await store.get(f"{path}/{name}")
        if record is None:
            continue
        cursor = url_decode(name)
        info = parse(ManagedCursorInfo(), record.value, cursor)
        if info.HasField("markDeleteLedgerId") and info.markDeleteLedgerId <= ledger_id:
            holders.append(cursor)
            sentences.append(
                f"Subscription {cursor} has acknowledged everything up to"
                f" {info.markDeleteLedgerId}:{info.markDeleteEntryId} of {log_name}, as far as"
                " ZooKeeper knows; the broker may be further."
            )
        elif not info.HasField("markDeleteLedgerId"):
            holders.append(cursor)
            sentences.append(
                f"Subscription {cursor} of {log_name} may need it: its position is stored in ledger"
                f" {info.cursorsLedgerId}."
            )
    if not holders:
        sentences.append(
            f"No subscription of {log_name} needs it: the retention policy keeps it, or the broker"
            " that owns the topic has not deleted it yet."
        )
    return LedgerReferences(log_name, True, tuple(holders), tuple(sentences))
