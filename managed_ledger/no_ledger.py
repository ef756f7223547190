"""The place of the writer in an idle log: no ledger takes entries.

A log is idle after an opening that found nothing new since the opening before.  All its ledgers are
closed, and it gets one to append to when it needs one (`protocol.log`).
"""

from daybook.managed_ledger.protocol.trim import SealedLedger


class NoLedger:
    """Stands behind the last ledger of the list, which is closed."""

    last_add_confirmed = -1
    length = 0
    batches = 0

    def __init__(self, last: SealedLedger) -> None:
        self.ledger_id = last.ledger_id
        # The reason why the ledger that is wanted is not there yet.
        self.waiting_for = ""

    async def close(self) -> None:
        """Do nothing: the ledger is closed."""
