"""Batch reads: consecutive entries of one bookie in one answer (v2, opcode 7).

    entries = await batches.read(bookie, ledger_id, first, count)    # a prefix, perhaps empty

Nothing is decided here: an entry of a batch is as good as one that was asked for by itself, and
what a batch does not bring is asked for by itself.  Not more is asked for than the caller may
read, and not more is given to it: bookies do not know how far a ledger is confirmed.

Bookies before Apache's 4.17 close the connection when they see such a request.  So batches have
connections of their own, and a bookie that did not answer one is not asked for another for a while;
whether it is old or away does not matter.
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
        raise MalformedError("an answer that is none to a batch read")
    return answer.request_id, answer


class BatchReads:
    """The batch reads of one ledger client."""

    def __init__(self, bookies: BookieClient) -> None:
        self._bookies = bookies
        self._limits = bookies.limits
        self._exchange = RequestChannel(bookies, _decode)
        self._avoid: dict[BookieId, float] = {}  # until when

    def worthwhile(self, bookie: BookieId, count: int, entry_bytes: int) -> bool:
        """So many entries of that size are better read in a batch there, as far as is known."""
        limits = self._limits
        if count < limits.batch_entries_min or entry_bytes > limits.batch_entry_bytes_max:
            return False
        return trio.current_time() >= self._avoid.get(bookie, -inf)

    async def read(
        self, bookie: BookieId, ledger_id: int, first: int, count: int
    ) -> list[memoryview]:
        """The first so many of `count` entries that come in one answer; nothing verified."""
        encode = partial(
            encode_batch_read,
            ledger_id,
            first,
            entries_max=count,
            bytes_max=self._limits.batch_bytes_max,
        )
        try:
            answer = await self._exchange.ask(bookie, encode, self._limits.read_timeout_s)
        except ConnectionLostError:
            self._avoid[bookie] = trio.current_time() + self._limits.batch_retry_s
            # Old, or away?  A usual request tells, and whoever remembers failures hears of it.
            self._bookies.nursery.start_soon(self._bookies.probe, bookie)
            return []
        return answer.entries[:count] if answer.status == Status.OK else []
