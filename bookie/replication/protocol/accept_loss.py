"""Unsafe recovery: an operator accepts the loss of entries so that a recovery can end.

A recovery aborts while it is unknown whether an entry was confirmed.  If the bookies that may know
are gone for good, or have lost their data, it aborts forever.  Here such bookies are *given up*:
they count as fenced.  If no bookie has an entry, and only bookies that are given up could say
whether it was confirmed, the ledger ends before that entry.

All other rules stay: a single copy recovers its entry, and a bookie that was not given up and does
not answer still aborts the recovery.
"""

from collections.abc import Collection, Sequence

from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.protocol.recover import READS_MAX, LastEntry, RecoverProtocol


class AcceptLoss(RecoverProtocol):
    def __init__(
        self,
        quorums: Quorums,
        fragments: Sequence[Fragment],
        *,
        given_up: Collection[BookieId],
        reads_max: int = READS_MAX,
    ) -> None:
        super().__init__(quorums, fragments, reads_max=reads_max)
        self.lost_from: int | None = None  # it and all later entries may have been confirmed
        self.stuck: int | None = None  # an entry that a bookie not given up may still know
        self._given_up = frozenset(given_up)

    def _fence_answered(self, bookie: BookieId, fenced: bool, last: LastEntry | None) -> None:
        # A bookie that is given up counts as fenced, also if it gave no answer.
        super()._fence_answered(bookie, fenced or bookie in self._given_up, last)

    def _read_answered(
        self, bookie: BookieId, entry_id: int, verdict: Verdict, length: int
    ) -> None:
        inquiry = self._inquiries.get(entry_id)
        if inquiry is not None and verdict is not Verdict.FOUND and entry_id > self._base:
            inquiry.answered(bookie, verdict)
            # Enough absences prove that the entry was not confirmed: then nothing is lost, and the
            # usual rule below ends the ledger.
            doubtful = inquiry.absences < self.quorums.absent
            if doubtful and inquiry.exhausted and inquiry.unknown <= self._given_up:
                self.lost_from = entry_id
                self._ends_before(entry_id)
                return
            if doubtful and inquiry.exhausted:
                self.stuck = entry_id
        super()._read_answered(bookie, entry_id, verdict, length)
