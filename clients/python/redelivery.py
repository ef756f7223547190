"""Asks the broker to deliver again the messages that the application gave to `nack`, after a delay.

On a shared or key_shared subscription the request names entries.  On any other, the broker goes
back to the first entry that is not acknowledged and delivers everything from there on again:
messages that wait in the queue are dropped, and messages under way are recognised by their older
epoch.  Acknowledgements are sent before the request; otherwise acknowledged messages would be
delivered again, too.

While no broker is attached, no request is needed: on attachment the broker delivers everything that
is not acknowledged.
"""

from collections.abc import Callable, Sequence

import trio

from daybook.clients.python.acknowledger import Acknowledger
from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.connection_handler import ConnectionHandler
from daybook.clients.python.limits import ConsumerLimits
from daybook.clients.python.protocol.acks import NackTracker
from daybook.clients.python.protocol.acks_in_doubt import EntryKey
from daybook.wire.proto import pulsar_pb2 as pb


class Redelivery:
    """One instance per topic consumer, which runs `run` as a task."""

    def __init__(
        self,
        handler: ConnectionHandler,
        consumer_id: int,
        acks: Acknowledger,
        limits: ConsumerLimits,
        *,
        by_entry: bool,
        drop: Callable[[], None],
    ) -> None:
        self.epoch = 0  # entries with an older epoch are dropped
        self._handler = handler
        self._id = consumer_id
        self._acks = acks
        self._by_entry = by_entry
        self._drop = drop
        self._nacks = NackTracker(limits.nack_delay_s, limits.nack_delay_max_s)
        self._waiting = trio.Event()

    def nack(self, key: EntryKey, redeliveries: int = 0, delay_max_s: float | None = None) -> None:
        """Ask for an entry again, after a delay that depends on how often it came before."""
        self._nacks.nack(key, trio.current_time(), redeliveries, delay_max_s)
        self._waiting.set()

    async def ask_now(self, keys: Sequence[EntryKey]) -> None:
        """Ask for entries again, without a delay."""
        # Before the request: the broker delivers again what it does not know as acknowledged.
        await self._acks.send_or_flush()
        connection = self._handler.connection
        if keys and connection is not None:
            self._ask(connection, keys)

    def forget(self) -> None:
        """Forget all entries: they come again anyhow, or are no longer of interest."""
        self._nacks.forget()

    async def run(self) -> None:
        while True:
            deadline = self._nacks.deadline
            if deadline is None:
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            # An entry that is added meanwhile may be due earlier, if it came less often.
            with trio.move_on_at(deadline):
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            await self.ask_now(self._nacks.due(trio.current_time()))

    def _ask(self, connection: BrokerConnection, keys: Sequence[EntryKey]) -> None:
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        if self._by_entry:
            for ledger_id, entry_id in keys:
                request.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
            self._acks.tracker.given_back(keys)
        else:
            self.epoch += 1
            request.consumer_epoch = self.epoch
            self._drop()
        connection.send_command(request)
