"""Batch reads: consecutive entries of one bookie in one answer (v2, opcode 7).

    entries = await batches.read(bookie, ledger_id, first, count)    # a prefix, perhaps empty

A batch decides nothing.  Its entries are checked like single ones, and an entry that is missing
from it is read by a single request.  A batch asks for no entry that the caller may not read, and
surplus entries are dropped: bookies do not know the LAC.

Bookies before Apache's 4.17 close the connection on such a request.  Batches therefore have
connections of their own, and a bookie that did not answer a batch gets no other for a while,
whether it is old or away.
"""

from functools import partial
from math import inf

import trio

from daybook.bookie.ledger.bookie_client import BookieClient
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.request_channel import RequestChannel
from daybook.wire.errors import ConnectionLostError, MalformedError
from daybook.wire.messages.bookie import BatchReadAnswer, Status, decode_answer, encode_batch_read


def _decode(frame: memoryview) -> tuple[int, BatchReadAnswer]:
    answer = decode_answer(frame)
    if not isinstance(answer, BatchReadAnswer):
        raise MalformedError("the bookie sent something else than the answer to a batch read")
    return answer.request_id, answer


class BatchReads:
    """The batch reads of one ledger client."""

    def __init__(self, bookies: BookieClient) -> None:
        self._bookies = bookies
        self._limits = bookies.limits
        self._requests = RequestChannel(bookies, _decode)
        self._avoid: dict[BookieId, float] = {}  # bookie -> time of the next batch

    def worthwhile(self, bookie: BookieId, count: int, entry_bytes: int) -> bool:
        """Return True if a batch is the better way to read so many entries of this size."""
        limits = self._limits
        if count < limits.batch_entries_min or entry_bytes > limits.batch_entry_bytes_max:
            return False
        return trio.current_time() >= self._avoid.get(bookie, -inf)

    async def read(
        self, bookie: BookieId, ledger_id: int, first: int, count: int
    ) -> list[memoryview]:
        """Return the first of the `count` entries, as many as fit one answer, unverified."""
        encode = partial(
            encode_batch_read,
            ledger_id,
            first,
            entries_max=count,
            bytes_max=self._limits.batch_bytes_max,
        )
        try:
            answer = await self._requests.ask(bookie, encode, self._limits.read_timeout_s)
        except ConnectionLostError:
            self._avoid[bookie] = trio.current_time() + self._limits.batch_retry_s
            # The bookie is old, or away.  The probe is a plain request; if it fails, the directory
            # hears of it and puts the bookie into quarantine.
            self._bookies.nursery.start_soon(self._bookies.probe, bookie)
            return []
        # A bookie may send more than was asked for, also entries above the LAC.
        return answer.entries[:count] if answer.status == Status.OK else []
