"""The auditor's part of the history: each version of the metadata, each copy of an entry.

The audit also checks each write: a ledger that a list or a cursor names exists and is not deleted.
"""

from collections.abc import Callable
from zlib import crc32

from daybook.bookie.errors import MalformedMetadataError
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState, decode_metadata
from daybook.bookie.ledger.protocol.placement import fragment_at
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.records import owner_of, parse
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.digest import Digester
from daybook.wire.entry import decode_entry
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import Record
from daybook.wire.topics import url_decode
from tests.history.events import (
    Belongs,
    Copy,
    LedgerGone,
    LedgerVersion,
    ListGone,
    ListVersion,
    Trimmed,
)
from tests.history.recorder import Recorder
from tests.simulation.cluster import Cluster
from tests.simulation.settings import BOOKIE_PORT

_NO = (StoreStatus.NO_ENTRY, StoreStatus.NO_LEDGER)


class MetadataAudit:
    """An observer of every write to the metadata store."""

    def __init__(self, recorder: Recorder, process_of: Callable[[str], str]) -> None:
        """`process_of` returns the incarnation of the broker on a host; "" if there is none."""
        self.ledgers: dict[int, LedgerMetadata] = {}
        # Records that do not parse, and named ledgers that do not exist.
        self.problems: list[str] = []
        self._recorder = recorder
        self._process_of = process_of
        self._writer = ""  # the host that made the write in question
        self._first: dict[str, int] = {}
        self._topics: set[str] = set()  # those that have a list
        # The topics of the ledgers that were made for a topic, and that no list has named.
        self._unlisted: dict[int, str] = {}
        # Ledgers, by the path of the record that names them.
        self._named: dict[str, frozenset[int]] = {}

    def orphans(self) -> list[int]:
        """Return the ledgers of present topics that are there and that no list has ever named."""
        return [each for each, topic in self._unlisted.items() if topic in self._topics]

    def topics_of_orphans(self) -> list[str]:
        """Return the topics of these ledgers."""
        return sorted({self._unlisted[each] for each in self.orphans()})

    def on_write(self, host: str, path: str, record: Record | None) -> None:
        self._writer = self._process_of(host)
        parts = path.split("/")
        match parts:
            case ["", "ledgers", "00", _, name] if name.startswith("L"):
                self._ledger(int("".join(parts[2:]).replace("L", "")), record)
            case ["", "managed-ledgers", tenant, namespace, "persistent", name]:
                self._list(f"persistent://{tenant}/{namespace}/{url_decode(name)}", path, record)
            case ["", "managed-ledgers", _, _, "persistent", _, _]:
                self._cursor(path, record)
            case _:
                pass

    def _ledger(self, ledger_id: int, record: Record | None) -> None:
        if record is None:
            self._unlisted.pop(ledger_id, None)
            if self.ledgers.pop(ledger_id, None) is not None:
                self._recorder.note(LedgerGone(ledger_id))
            for path, named in self._named.items():
                if ledger_id in named:
                    self.problems.append(f"ledger {ledger_id} is deleted, and {path} names it")
            return
        is_new = ledger_id not in self.ledgers
        try:
            metadata = decode_metadata(record.value, record.stat.created_ms)
        except MalformedMetadataError as error:
            self.problems.append(f"ledger {ledger_id}: {error}")
            return
        self.ledgers[ledger_id] = metadata
        owner = owner_of(metadata.custom)
        if is_new and owner is not None and owner[1] is None:
            topic = self._unlisted[ledger_id] = _topic_of(owner[0])
            self._recorder.note(Belongs(ledger_id, topic, self._writer))
        quorums = metadata.quorums
        self._recorder.note(
            LedgerVersion(
                ledger_id,
                record.stat.version,
                metadata.state.name,
                metadata.last_entry_id if metadata.closed else -1,
                metadata.length if metadata.closed else 0,
                (quorums.ensemble, quorums.write, quorums.ack),
                tuple((each.first_entry_id, tuple(each.ensemble)) for each in metadata.fragments),
            )
        )

    def _names(self, path: str, ledgers: frozenset[int]) -> None:
        for ledger_id in sorted(ledgers - self._named.get(path, frozenset())):
            if ledger_id not in self.ledgers:
                self.problems.append(f"{path} names ledger {ledger_id}, which is not there")
        self._named[path] = ledgers

    def _cursor(self, path: str, record: Record | None) -> None:
        if record is None:
            self._named.pop(path, None)
            return
        try:
            info = parse(ManagedCursorInfo(), record.value, path)
        except LogCorruptError as error:
            self.problems.append(f"the cursor {path}: {error}")
            return
        ledger_id = info.cursorsLedgerId
        self._names(path, frozenset() if ledger_id < 0 else frozenset([ledger_id]))

    def _list(self, topic: str, path: str, record: Record | None) -> None:
        if record is None:
            self._named.pop(path, None)
            self._first.pop(topic, None)
            self._topics.discard(topic)
            self._recorder.note(ListGone(topic))
            return
        try:
            info = parse(ManagedLedgerInfo(), record.value, topic)
        except LogCorruptError as error:
            self.problems.append(f"the list of {topic}: {error}")
            return
        ledgers = tuple(each.ledgerId for each in info.ledgerInfo)
        self._topics.add(topic)
        for ledger_id in ledgers:
            self._unlisted.pop(ledger_id, None)
        self._names(path, frozenset(ledgers))
        self._recorder.note(ListVersion(topic, record.stat.version, ledgers, self._writer))
        if ledgers:
            before = self._first.setdefault(topic, ledgers[0])
            if ledgers[0] != before:
                self._first[topic] = ledgers[0]
                self._recorder.note(Trimmed(topic, ledgers[0]))


def _topic_of(log: str) -> str:
    tenant, namespace, domain, name = log.split("/")
    return f"{domain}://{tenant}/{namespace}/{url_decode(name)}"


async def audit_copies(cluster: Cluster, audit: MetadataAudit, recorder: Recorder) -> None:
    """Read each entry of each closed ledger from each bookie that the metadata names for it."""
    for ledger_id, metadata in audit.ledgers.items():
        if metadata.state is not LedgerState.CLOSED:
            continue
        assert metadata.digest_type is not None
        digester = Digester(metadata.digest_type, metadata.password or b"")
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = fragment_at(metadata.fragments, entry_id).ensemble
            for offset in range(metadata.quorums.write):
                bookie = ensemble[(entry_id + offset) % len(ensemble)]
                recorder.note(await _copy(cluster, bookie, ledger_id, entry_id, digester))


async def _copy(
    cluster: Cluster, bookie_id: str, ledger_id: int, entry_id: int, digester: Digester
) -> Copy:
    running = cluster.bookie(bookie_id.removesuffix(f":{BOOKIE_PORT}"))
    if running is None:
        return Copy(ledger_id, entry_id, bookie_id, "unknown")
    try:
        stored = await running.store.read(ledger_id, entry_id)
        entry = decode_entry(stored, digester, ledger_id, entry_id)
    except StoreError as error:
        found = "no" if error.status in _NO else "unknown"
        return Copy(ledger_id, entry_id, bookie_id, found)
    except WireError:
        return Copy(ledger_id, entry_id, bookie_id, "unknown")
    digest = f"{crc32(entry.payload):08x}"
    return Copy(ledger_id, entry_id, bookie_id, "yes", digest, len(entry.payload))
