"""A client and its links as one number, a *side*; all bookies as one number, a *shelf*.

The next steps of a client depend only on its side and the shelf: on its state, its messages under
way, and the entries of the bookies (by which messages are pruned).  There are far fewer such pairs
than states, so the steps of each pair are worked out once.

Messages in flight that can make no difference are dropped: answers that the client no longer
wants, and requests whose answers it no longer wants and that change nothing at the bookie.

A step is *settled* if a bookie serves a request without changing its state, gives the same answer
whenever it serves it, and the client wants the answer.  Such a step commutes with all others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from daybook.wire.messages.bookie import LAST_ENTRY, Status
from tests.model.ledger.bookies import Bookies
from tests.model.ledger.clients import Option, Outcome, Table, bookie_id
from tests.model.ledger.messages import asked, said
from tests.model.ledger.network import IDLE, Links, Way
from tests.model.ledger.settings import LedgerSettings
from tests.model.numbering import Numbering
from tests.model.search import BrokenRuleError, Move

Side: TypeAlias = tuple[int, ...]
"""The client, and its link with each bookie."""

Shelf: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A step; if it is `plain`, only the side changes; `lac` is that of an entry stored by it.

    `bookie` sends or gets the message of the step; -1 for a step of the client alone.
    """

    text: str
    bookie: int = -1
    to_client: bool = False
    side: int = 0
    shelf: int = 0
    plain: bool = False
    lac: int = -1
    cut: bool = False
    outcome: Outcome | None = None
    broken: BrokenRuleError | None = None

    def move(self, name: str) -> Move:
        bookie = bookie_id(self.bookie) if self.bookie >= 0 else name
        return Move(bookie, name, self.text) if self.to_client else Move(name, bookie, self.text)


class Shelves:
    """The combined states of all bookies, by number."""

    def __init__(self, bookies: Bookies, count: int) -> None:
        self.shelves: Numbering[Shelf] = Numbering((0,) * count)
        self._bookies = bookies
        self._facts: list[list[tuple[bool, frozenset[int]]]] = []

    def __getitem__(self, shelf: int) -> Shelf:
        return self.shelves[shelf]

    def of(self, shelf: Shelf) -> int:
        return self.shelves.of(shelf)

    def facts(self, shelf: int) -> list[tuple[bool, frozenset[int]]]:
        known = self._facts
        while len(known) <= shelf:
            known.append([self._bookies.facts(each) for each in self.shelves[len(known)]])
        return known[shelf]


class Sides:
    """The sides of one kind of client."""

    def __init__(
        self,
        table: Table[Any],
        settings: LedgerSettings,
        bookies: Bookies,
        shelves: Shelves,
        links: Links,
        requests: Numbering[bytes],
        answers: Numbering[bytes],
    ) -> None:
        self.table = table
        self._settings = settings
        self._bookies = bookies
        self._shelves = shelves
        self._links = links
        self._requests = requests
        self._answers = answers
        self._count = settings.bookies
        self._sides: Numbering[Side] = Numbering()
        self.asks: list[bool] = []  # by side: the client has a request to the metadata store
        self.is_fresh: list[bool] = []  # by side: the client has done nothing yet
        self._number((0, *(IDLE,) * settings.bookies))
        self._steps: dict[tuple[int, int], tuple[Step, ...]] = {}
        self._settled: dict[tuple[int, int], Step | None] = {}
        self._pruned: dict[tuple[int, int], int] = {}
        self._told: dict[tuple[int, int, int], tuple[int, Outcome]] = {}
        self._kept: dict[tuple[int, int, int, int], int] = {}
        self._link_facts: dict[int, tuple[bool, bool]] = {}
        self._finals: dict[tuple[int, int], bool] = {}

    def host(self, side: int) -> int:
        """Return the number of the client's own state."""
        return self._sides[side][0]

    def told(self, side: int, shelf: int, answer: int) -> tuple[int, Outcome]:
        """Return the side after an answer of the metadata store, and the outcome."""
        key = (side, shelf, answer)
        known = self._told.get(key)
        if known is None:
            host, *links = self._sides[side]
            outcome = self.table.told(host, answer)
            known = self._told[key] = self._after(outcome, links, shelf), outcome
        return known

    def steps(self, side: int, shelf: int) -> tuple[Step, ...]:
        key = (side, shelf)
        known = self._steps.get(key)
        if known is None:
            known = self._steps[key] = tuple(self._work_out(side, shelf))
        return known

    def settled(self, side: int, shelf: int) -> Step | None:
        """Return a step that may be taken before all others, if there is one."""
        key = (side, shelf)
        if key not in self._settled:
            self._settled[key] = self._find_settled(side, shelf)
        return self._settled[key]

    def pruned(self, side: int, shelf: int) -> int:
        """Return the side without the messages that can make no difference on this shelf."""
        key = (side, shelf)
        known = self._pruned.get(key)
        if known is None:
            host, *links = self._sides[side]
            known = self._pruned[key] = self._of(host, links, shelf)
        return known

    # -- the steps

    def _work_out(self, side: int, shelf: int) -> Iterator[Step]:
        host, *links = self._sides[side]
        for bookie, link in enumerate(links):
            for way, message, rest in self._links.deliveries(link):
                after = [*links[:bookie], rest, *links[bookie + 1 :]]
                if way is Way.ANSWER:
                    yield self._heard(host, bookie, message, after, shelf)
                else:
                    yield self._served(host, bookie, way, message, after, shelf)
        for option in self.table.options(host):
            if option.bookie < 0 or self._is_open(option, links[option.bookie]):
                yield self._taken(host, option, links, shelf)

    def _heard(self, host: int, bookie: int, message: int, links: list[int], shelf: int) -> Step:
        try:
            outcome = self.table.hear(host, bookie, message)
            side = self._after(outcome, links, shelf)
        except BrokenRuleError as error:
            text = str(said(self._answers[message]))
            return Step(text, bookie, to_client=True, broken=error)
        checked = None if outcome.plain else outcome
        return Step(outcome.text, bookie, True, side, shelf, plain=outcome.plain, outcome=checked)

    def _taken(self, host: int, option: Option, links: list[int], shelf: int) -> Step:
        if option.cut:
            links = list(links)
            links[option.bookie] = self._links.cut(links[option.bookie])
        try:
            outcome = self.table.take(host, option)
            side = self._after(outcome, links, shelf)
        except BrokenRuleError as error:
            return Step(str(option), cut=option.cut, broken=error)
        plain = outcome.plain and not option.cut
        checked = None if outcome.plain else outcome
        return Step(
            outcome.text, side=side, shelf=shelf, plain=plain, cut=option.cut, outcome=checked
        )

    def _served(
        self, host: int, bookie: int, way: Way, request: int, links: list[int], shelf: int
    ) -> Step:
        stored = list(self._shelves[shelf])
        try:
            served = self._bookies.serve(stored[bookie], request)
            if way is not Way.STRAY:  # The answer to a stray is lost with its connection.
                links[bookie] = self._links.answer(links[bookie], served.answer)
            changes = served.after != stored[bookie]
            stored[bookie] = served.after
            after = self._shelves.of(tuple(stored)) if changes else shelf
            side = self._of(host, links, after)
        except BrokenRuleError as error:
            return Step(str(asked(self._requests[request])), bookie, broken=error)
        text = served.text + (" (late)" * (way is Way.STRAY))
        return Step(text, bookie, False, side, after, plain=not changes, lac=served.lac)

    def _is_open(self, option: Option, link: int) -> bool:
        if option.link or option.adds:
            busy, adds = self._under_way(link)
            return adds if option.adds else busy
        return True

    def _under_way(self, link: int) -> tuple[bool, bool]:
        """Return whether a message is under way on the link, and whether an add is."""
        facts = self._link_facts.get(link)
        if facts is None:
            _, requests, answers = self._links[link]
            adds = any(asked(self._requests[each]).is_add for each in requests) or any(
                said(self._answers[each]).is_add for each in answers
            )
            facts = self._link_facts[link] = (bool(requests or answers), adds)
        return facts

    # -- the side after a step

    def _number(self, side: Side) -> int:
        number = self._sides.of(side)
        if number == len(self.asks):
            self.asks.append(self.table.task(side[0]) is not None)
            self.is_fresh.append(not side[0])
        return number

    def _after(self, outcome: Outcome, links: list[int], shelf: int) -> int:
        """Return the side after an outcome, with the requests that the client sends."""
        links = list(links)
        for bookie, request in outcome.sends:
            links[bookie] = self._links.send(links[bookie], request)
        return self._of(outcome.after, links, shelf)

    def _of(self, host: int, links: list[int], shelf: int) -> int:
        if not self._settings.drops:
            return self._number((host, *links))
        kept = [host]
        for bookie, (link, stored) in enumerate(zip(links, self._shelves[shelf], strict=True)):
            key = (link, host, stored, bookie)
            left = self._kept.get(key)
            if left is None:
                left = self._kept[key] = self._keep(*key)
            kept.append(left)
        return self._number(tuple(kept))

    def _keep(self, link: int, host: int, stored: int, bookie: int) -> int:
        table, serve = self.table, self._bookies.serve
        strays, requests, answers = self._links[link]
        # A stray gets no answer, so it makes a difference only if it changes the bookie.
        strays = tuple(r for r in strays if serve(stored, r).after != stored)
        requests = tuple(
            r for r in requests if table.cares(host, bookie, r) or serve(stored, r).after != stored
        )
        answers = tuple(a for a in answers if table.wants(host, bookie, a))
        if not requests and not answers and table.waits(host, bookie):
            text = f"a client waits for b{bookie}, and nothing is under way"
            raise BrokenRuleError("L1", text)
        return self._links.of((strays, requests, answers))

    # -- steps that may be taken first

    def _find_settled(self, side: int, shelf: int) -> Step | None:
        host, *links = self._sides[side]
        for bookie, link in enumerate(links):
            stored = self._shelves[shelf][bookie]
            for way, request, rest in self._links.deliveries(link):
                if way is not Way.REQUEST or not self._is_final(stored, request):
                    continue
                if self.table.wants(host, bookie, self._bookies.serve(stored, request).answer):
                    after = [*links[:bookie], rest, *links[bookie + 1 :]]
                    return self._served(host, bookie, way, request, after, shelf)
        return None

    def _is_final(self, stored: int, request: int) -> bool:
        key = (stored, request)
        known = self._finals.get(key)
        if known is None:
            known = self._finals[key] = is_final(
                self._bookies, self._settings, stored, self._requests[request], request
            )
        return known


def is_final(
    bookies: Bookies, settings: LedgerSettings, stored: int, frame: bytes, request: int
) -> bool:
    """Return True if the bookie, now and later, gives the same answer and changes nothing.

    A stored entry never changes, and a fence stays.  After a fence only recoverers store entries; a
    single recoverer on an ordered link does so only after its reads.
    """
    try:
        served = bookies.serve(stored, request)
    except BrokenRuleError:
        return False  # The step itself reports the broken rule when it is taken.
    if served.after != stored:
        return False
    about, what = asked(frame), said(bookies.answers[served.answer])
    fenced, held = bookies.facts(stored)
    if about.is_add:
        return fenced and what.status is Status.FENCED
    if about.entry_id != LAST_ENTRY and about.entry_id in held:
        return what.status is Status.OK
    return fenced and settings.recoverers == 1 and settings.fifo and not settings.readers
