"""The size of a model of one ledger, and how often each fault may happen in it.

Crashes and lost messages need no switch of their own: a message that is never delivered is lost,
and a client that never takes another step has crashed.  A client that waits for an answer may give
up at any time, as often as its budget allows.
"""

from dataclasses import dataclass

from daybook.bookie.ledger.protocol.placement import Quorums


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    bookies: int
    quorums: Quorums
    entries: int = 1
    in_flight: int = 1  # the most entries that the writer has under way
    recoverers: int = 1
    reads_max: int = 1  # entries that a recoverer reads at a time
    give_ups: int = 0  # bookies that the writer gives up ("w1")
    changes: int = 0  # ensemble changes of the writer, where there is a spare
    postponed: bool = False  # the writer may continue without a bookie though there is a spare
    recovery_give_ups: int = 0  # requests that a recoverer gives up, reads and adds ("r1")
    recovery_changes: int = 0  # ensemble changes of each recoverer, where there is a spare
    readers: int = 0  # readers that do not recover
    read_give_ups: int = 0  # requests that a reader gives up
    slow: bool = False  # a reader may ask other bookies, too, before it has an answer
    degraded: bool = False  # a bookie is away when the ledger is created
    fence_give_ups: bool = False  # a recoverer may give up fencing a bookie: that can only abort it
    cuts: int = 0  # connections of the writer that break: answers are lost, requests may arrive
    lost_answers: int = 0  # answers to writes, which the store carries out now, later or never
    stale: bool = False  # a recoverer may begin with metadata that are not the newest
    closes: bool = False  # the writer may close the ledger
    fifo: bool = True  # links keep the order of requests and answers
    white_box: bool = True  # also check the W rules, which look inside
    canonical: bool = True  # states that differ only in the order of equal parts are one
    drops: bool = True  # messages that can make no difference are dropped from the state
    reduced: bool = False  # a step that commutes with all others is taken first (`sides`)

    def __str__(self) -> str:
        quorums = self.quorums
        parts = [
            f"{self.bookies}x {quorums.ensemble}/{quorums.write}/{quorums.ack}",
            f"{self.entries} {'entry' if self.entries == 1 else 'entries'}",
            f"{self.recoverers} rec",
        ]
        for text, value in [
            ("reader", self.readers),
            ("in flight {}", self.in_flight - 1 and self.in_flight),
            ("reads {}", self.reads_max - 1 and self.reads_max),
            ("w{}", self.give_ups),
            ("r{}", self.recovery_give_ups),
            ("read give-ups {}", self.read_give_ups),
            ("cuts {}", self.cuts),
            ("lost answers {}", self.lost_answers),
            ("close", self.closes),
            ("postponed", self.postponed),
            ("stale", self.stale),
            ("fence give-ups", self.fence_give_ups),
            ("slow", self.slow),
            ("degraded", self.degraded),
            ("no FIFO", not self.fifo),
            ("no W rules", not self.white_box),
        ]:
            if value:
                parts.append(text.format(value))
        return ", ".join(parts)
