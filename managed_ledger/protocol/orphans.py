"""Orphans: ledgers that nothing names, and nothing ever will.

A ledger is judged only if it names a log, or a cursor, of this very *tree* of logs, and only when
it is old.  (Two trees may keep logs of one name in the same ledgers root.  Ledgers of other
applications, of Pulsar's brokers and of older versions name no tree, and are kept.)  A ledger is an
orphan in one of two cases:

- Its log is open here and does not name it.  (A compacted ledger is named by a property of a
  cursor, as it is in memory and as it is stored.)  Another host that created it knows a list from
  before this opening.  Every write by which it could name its ledger checks the version of that
  list, and fails.  The ids of ledgers ascend, so an id below that of the opening's first ledger
  proves that another opening created it.  A higher id does not: the request of a former owner may
  arrive after the opening, and this opening creates ledgers, too.  Such a ledger is an orphan while
  this opening creates none for the same list or cursor.  Compacted ledgers with higher ids are
  kept, because a compaction that runs here names its ledger only in the end.
- Its log is gone.  A ledger is created after the list of its log, so the list was deleted since,
  and the records of its cursors with it.  A writer that does not know this yet could name the
  ledger only on a new list that has, by chance, the version that the writer knows.  So two passes
  in a row have to find the ledger unchanged.  A host that has not heard of the loss of the log for
  that time, and for the age of the ledger, has no session any more.
"""

from dataclasses import dataclass

SUSPECTS_MAX = 100_000  # further ones wait for a later pass


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts in the metadata of a ledger.

    Its owner is `log`, or its `cursor`, or the compacted `topic` of the log.
    """

    ledger_id: int
    version: int
    tree: str | None
    log: str
    cursor: str | None
    created_ms: int | None
    topic: str | None = None


def may_be_orphan(candidate: Candidate, tree: str, now_ms: int, age_ms: int) -> bool:
    """Return True if the ledger belongs to this tree and has that age."""
    created_ms = candidate.created_ms
    return candidate.tree == tree and created_ms is not None and now_ms - created_ms >= age_ms


def is_orphan_of_open_log(
    candidate: Candidate, owned_from: int, *, named: bool, creating: bool
) -> bool:
    """Return True for an orphan of a log that is open here.

    `owned_from` is the first ledger of the log's opening.  `named` says that the list or a cursor
    names the ledger, and `creating` that the opening may yet name a ledger that it creates.
    """
    if named:
        return False
    return candidate.ledger_id < owned_from or (candidate.topic is None and not creating)


class Suspects:
    """The ledgers whose logs are gone, kept from one pass to the next."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # versions of metadata, by ledger
        self._now: dict[int, int] = {}

    def begin(self) -> None:
        """Start a pass; the ledgers that the last pass found count."""
        self._before, self._now = self._now, {}

    def forget(self) -> None:
        """Drop all ledgers, since another host looks for them now."""
        self._before, self._now = {}, {}

    def is_found_again(self, candidate: Candidate) -> bool:
        """Return True if the last pass also found the ledger, in the same version."""
        if len(self._now) < SUSPECTS_MAX:
            self._now[candidate.ledger_id] = candidate.version
        return self._before.get(candidate.ledger_id) == candidate.version
