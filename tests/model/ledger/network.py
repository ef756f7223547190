"""Links between a client and a bookie, by number: the messages in flight, in both directions.

TCP keeps the order of requests and that of answers.  When a connection is *cut*, answers are lost.
Requests that were under way may still arrive, in their order, at any time or never, even after
requests of the next connection; their answers are lost.  Without `fifo` any message may overtake
any other, as with a new connection for each request, or bookies that serve in parallel.
"""

from enum import IntEnum
from typing import TypeAlias

from tests.model.numbering import Numbering

Messages: TypeAlias = tuple[int, ...]
Link: TypeAlias = tuple[Messages, Messages, Messages]
"""Requests of connections that were cut; requests; answers."""

IDLE = 0


class Way(IntEnum):
    STRAY = 0
    REQUEST = 1
    ANSWER = 2


Delivery: TypeAlias = tuple[Way, int, int]
"""A message that may arrive next: the way, the message, and the link without it."""


class Links:
    def __init__(self, *, fifo: bool, canonical: bool = True) -> None:
        self._fifo = fifo
        self._sorted = canonical and not fifo
        self._links: Numbering[Link] = Numbering(((), (), ()))
        self._deliveries: list[tuple[Delivery, ...]] = []
        self._sent: dict[tuple[int, int], int] = {}
        self._answered: dict[tuple[int, int], int] = {}
        self._cut: dict[int, int] = {}

    def __getitem__(self, link: int) -> Link:
        return self._links[link]

    def of(self, link: Link) -> int:
        return self._links.of(link)

    def deliveries(self, link: int) -> tuple[Delivery, ...]:
        known = self._deliveries
        while len(known) <= link:
            known.append(self._work_out(self._links[len(known)]))
        return known[link]

    def _work_out(self, link: Link) -> tuple[Delivery, ...]:
        found: list[Delivery] = []
        for way in Way:
            messages = link[way]
            for at in range(len(messages) if not self._fifo else min(1, len(messages))):
                if messages[at] in messages[:at]:
                    continue  # An equal message leads to the same state.
                rest = list(link)
                rest[way] = messages[:at] + messages[at + 1 :]
                strays, requests, answers = rest
                number = self._links.of((strays, requests, answers))
                found.append((way, messages[at], number))
        return tuple(found)

    def send(self, link: int, request: int) -> int:
        key = (link, request)
        number = self._sent.get(key)
        if number is None:
            strays, requests, answers = self._links[link]
            number = self._links.of((strays, self._put(requests, request), answers))
            self._sent[key] = number
        return number

    def answer(self, link: int, answer: int) -> int:
        key = (link, answer)
        number = self._answered.get(key)
        if number is None:
            strays, requests, answers = self._links[link]
            number = self._links.of((strays, requests, self._put(answers, answer)))
            self._answered[key] = number
        return number

    def _put(self, messages: Messages, message: int) -> Messages:
        # Without FIFO any message may be next, so the order of the others makes no difference.
        after = (*messages, message)
        return tuple(sorted(after)) if self._sorted else after

    def cut(self, link: int) -> int:
        number = self._cut.get(link)
        if number is None:
            strays, requests, _ = self._links[link]  # The answers are lost.
            number = self._cut[link] = self._links.of(((*strays, *requests), (), ()))
        return number
