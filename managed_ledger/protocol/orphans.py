"""Which ledgers nothing names, and nothing ever will.

A ledger is judged only if it says that it was made for a log, or a cursor, of this very *tree* of
logs, and only when it is old.  (Two trees may keep logs of one name in the same ledgers; ledgers of
other applications, of Pulsar's brokers and of older versions name no tree, and stay.)  It is an
orphan in one of two cases:

- Its log is open here, was opened since, and names it nowhere.  Ids of ledgers grow, so whoever has
  made one that is older than the first one of our opening, knows a list of before our opening, and
  every write by which it could name its ledger checks the version of that list.
- Its log is gone.  A ledger is made after the list of its log, so the list was deleted since, and
  with it the records of its cursors.  A writer that does not know that yet could only name the
  ledger on a list that somebody makes anew and that has, by chance, the version that the writer
  knows.  So such a ledger has to be found in two passes, unchanged: a host that has not heard for
  as long as that, and for the age of the ledger, that it has lost the log, has no session left.
"""

from dataclasses import dataclass

SUSPECTS_MAX = 100_000  # more of them wait for a later pass


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the metadata of a ledger say."""

    ledger_id: int
    version: int
    tree: str | None
    log: str
    cursor: str | None
    created_ms: int | None


def may_be_orphan(candidate: Candidate, tree: str, now_ms: int, age_ms: int) -> bool:
    """Is it of this tree, and as old as that?"""
    created_ms = candidate.created_ms
    return candidate.tree == tree and created_ms is not None and now_ms - created_ms >= age_ms


def is_orphan_of_open_log(candidate: Candidate, owned_from: int, *, named: bool) -> bool:
    """`owned_from`: the first ledger of the log's opening; `named`: by the list, or a cursor."""
    return candidate.ledger_id < owned_from and not named


class Suspects:
    """Ledgers whose logs are gone, from one pass to the next."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # versions of metadata, by ledger
        self._now: dict[int, int] = {}

    def begin(self) -> None:
        """A pass begins; what was found in the last one counts."""
        self._before, self._now = self._now, {}

    def forget(self) -> None:
        """Nothing counts any more: somebody else looks."""
        self._before, self._now = {}, {}

    def is_found_again(self, candidate: Candidate) -> bool:
        """Was the log gone in the last pass, too, and the ledger as it is now?"""
        if len(self._now) < SUSPECTS_MAX:
            self._now[candidate.ledger_id] = candidate.version
        return self._before.get(candidate.ledger_id) == candidate.version
