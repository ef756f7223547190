"""The state that the tasks of a client process share: a name, a history, a list of ledgers.

Brokers may have ledgers in the same cluster.  The soak marks its own by custom metadata.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

import trio

from daybook.clients import ledgers
from tests.history.events import Event
from tests.history.recorder import Recorder

PASSWORD = b"soak"
CUSTOM = {"soak": b"ledgers"}
OWN_IDS = 1 << 40  # the least id that callers choose; the cluster assigns smaller ones
_LIST_S = 1.0
_RECENT = 60  # the number of newest ledgers that are used


@dataclass(slots=True)
class Worker:
    """One instance per process."""

    name: str  # unique in the history
    seed: str
    number: int  # the number of the round
    first_id: int  # the first id that the cluster assigns in this round
    recorder: Recorder
    _ids: list[int] = field(default_factory=list[int])
    _listed_s: float = -_LIST_S
    _ours: dict[int, bool] = field(default_factory=dict[int, bool])

    def rng(self, purpose: object) -> Random:
        return Random(f"{self.seed}/{self.name}/{purpose}")

    def note(self, event: Event) -> None:
        self.recorder.note(event)

    @property
    def own_ids(self) -> int:
        """Return the first id that callers choose in this round."""
        return (self.number + 1) * OWN_IDS

    def of_this_round(self, ledger: int) -> bool:
        if ledger < OWN_IDS:
            return ledger >= self.first_id
        return self.own_ids <= ledger < self.own_ids + OWN_IDS

    async def choose(self, client: ledgers.Client, rng: Random) -> int | None:
        """Choose one of the newest ledgers of this round.

        Return None if there is none, or if ZooKeeper does not answer.
        """
        now_s = trio.current_time()
        if now_s - self._listed_s >= _LIST_S:
            self._listed_s = now_s
            try:
                listed = [each async for each in client.list_ledgers() if self.of_this_round(each)]
            except ledgers.LedgerError:
                return None
            given = [each for each in listed if each >= OWN_IDS]
            self._ids = [each for each in listed if each < OWN_IDS][-_RECENT:] + given[-_RECENT:]
        chosen = rng.choice(self._ids) if self._ids else None
        try:
            return chosen if chosen is not None and await self.is_ours(client, chosen) else None
        except ledgers.LedgerError:
            return None

    async def is_ours(self, client: ledgers.Client, ledger: int) -> bool:
        """Return True if a client of a soak has created the ledger, False if a broker has.

        Raise `LedgerError` if the metadata cannot be read.
        """
        if ledger not in self._ours:
            metadata = await client.metadata(ledger)
            self._ours[ledger] = CUSTOM.items() <= dict(metadata.custom).items()
        return self._ours[ledger]


def digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
