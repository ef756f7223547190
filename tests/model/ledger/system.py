"""One ledger as a system to be searched.

A state is a tuple of numbers:

    acked + 1 | budget | record | writer | answer of the store to it | writes that may come late
    | recoverers ... | readers ... | bookies ... | links of the writer ... | links of each other ...

What a recoverer asks of the metadata store is carried out and heard in one step: it does nothing
else meanwhile, so hearing it later would only delay what it sends next, and that may be delayed
anyway.  The writer goes on meanwhile, and hears in a step of its own.

What is in flight and can make no difference any more is dropped: answers that nobody wants, and
requests that change nothing at the bookie, now or later, and whose answers nobody wants.
Recoverers are alike, so states that differ in their order only are one.  Bookies are not alike: a
recovery asks them in the order of the write set.
"""

from typing import Any, TypeAlias

from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.protocol import update
from bookie.ledger.protocol.placement import Fragment
from bookie.ledger.protocol.update import (
    Conflict,
    Read,
    Stored,
    Unavailable,
    Unknown,
    Write,
    Written,
)
from tests.model.ledger import rules
from tests.model.ledger.bookies import Bookies
from tests.model.ledger.clients import Option, Outcome, Table, bookie_id
from tests.model.ledger.messages import asked, said
from tests.model.ledger.metadata import End, Register, answer, show
from tests.model.ledger.network import IDLE, Links, Way
from tests.model.ledger.reader import Following, ReaderRules
from tests.model.ledger.recoverer import RecovererRules, Recovering
from tests.model.ledger.settings import LedgerSettings
from tests.model.ledger.writer import WriterRules, Writing
from tests.model.numbering import Numbering
from tests.model.search import BrokenRuleError, Move, State

_ACKED, _BUDGET, _RECORD, _WRITER, _TOLD, _LATE, _HOSTS = range(7)
_NOTHING = 0

Budget: TypeAlias = tuple[int, int]  # cuts, lost answers


class LedgerSystem:
    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        count, recoverers, readers = settings.bookies, settings.recoverers, settings.readers
        self._clients = 1 + recoverers + readers
        self._bookie0 = _HOSTS + recoverers + readers
        self._link0 = self._bookie0 + count
        self._count = count
        self._white_box = settings.white_box
        self._twins = recoverers == 2
        requests: Numbering[bytes] = Numbering()
        answers: Numbering[bytes] = Numbering()
        nothing = Unavailable()  # takes number 0, which says that no answer is on its way
        self._events: Numbering[update.Event] = Numbering(nothing)
        self._requests, self._answers = requests, answers
        self._budgets: Numbering[Budget] = Numbering((settings.cuts, settings.lost_answers))
        self._late: Numbering[tuple[Write, ...]] = Numbering(())
        self._links = Links(fifo=settings.fifo)
        self._bookies = Bookies(requests, answers, white_box=settings.white_box)
        ensemble = tuple(bookie_id(number) for number in range(settings.quorums.ensemble))
        metadata = LedgerMetadata(quorums=settings.quorums, fragments=(Fragment(0, ensemble),))
        self._records: Numbering[Register] = Numbering(Register(metadata, 0))
        writer, recoverer = WriterRules(settings), RecovererRules(settings)
        first = writer.first(Stored(metadata, 0))
        self._writer: Table[Writing] = Table(writer, first, requests, answers, self._events)
        self._recoverer: Table[Recovering] = Table(
            recoverer, recoverer.first(), requests, answers, self._events
        )
        reader = ReaderRules(settings)
        self._reader: Table[Following] = Table(
            reader, reader.first(), requests, answers, self._events
        )
        self._tables: list[Table[Any]] = [self._writer]
        self._tables += [self._recoverer] * recoverers + [self._reader] * readers
        self._kinds = [0] + [1] * recoverers + [2] * readers
        self._names = ["writer", *(f"r{n + 1}" for n in range(recoverers)), *["reader"] * readers]
        assert readers <= 1
        assert recoverers <= 2
        self._pruned: dict[tuple[int, int, int, int, int], int] = {}
        self._link_facts: dict[int, tuple[bool, bool]] = {}
        self._checked: set[tuple[int, ...]] = set()
        bookies = [str(bookie_id(number)) for number in range(count)]
        self.columns = (*self._names, *bookies, "store")

    def initial(self) -> State:
        return (0,) * (self._link0 + self._count * self._clients)

    def expand(self, state: State, moves: list[Move] | None = None) -> list[State]:
        found: list[State] = []
        deliveries, count = self._links.deliveries, self._count
        at = self._link0
        for client in range(self._clients):
            for bookie in range(count):
                link = state[at]
                at += 1
                if link == IDLE:
                    continue
                for way, message, rest in deliveries(link):
                    if way is Way.ANSWER:
                        self._hear(state, client, bookie, message, rest, found, moves)
                    else:
                        self._serve(state, client, bookie, way, message, rest, found, moves)
            self._act(state, client, found, moves)
            self._ask_store(state, client, found, moves)
        self._start(state, found, moves)
        if state[_TOLD]:
            self._hear_store(state, found, moves)
        if state[_LATE]:
            self._write_late(state, found, moves)
        return found

    def hosts(self, state: State) -> tuple[object, ...]:
        """What the numbers of a state mean, without messages and budgets: for tests."""
        clients = [
            table.states[state[self._host(client)]] for client, table in enumerate(self._tables)
        ]
        bookies = [self._bookies.states[each] for each in state[self._bookie0 : self._link0]]
        return state[_ACKED], self._records[state[_RECORD]], *clients, *bookies

    def _host(self, client: int) -> int:
        return _HOSTS + client - 1 if client else _WRITER

    # -- messages

    def _serve(
        self,
        state: State,
        client: int,
        bookie: int,
        way: Way,
        request: int,
        rest: int,
        found: list[State],
        moves: list[Move] | None,
    ) -> None:
        if moves is not None:
            text = str(asked(self._requests[request]))
            moves.append(Move(self._names[client], bookie_id(bookie), text))
        before = state[self._bookie0 + bookie]
        served = self._bookies.serve(before, request)
        if served.lac >= state[_ACKED]:
            rules.check_stored_lac(served.lac, state[_ACKED] - 1)
        if moves is not None:
            moves[-1] = moves[-1]._replace(text=served.text + (" (late)" * (way is Way.STRAY)))
        new = list(state)
        at = self._link0 + client * self._count + bookie
        new[at] = rest if way is Way.STRAY else self._links.answer(rest, served.answer)
        if served.after == before:
            self._prune(new, client, bookie)
        else:
            new[self._bookie0 + bookie] = served.after
            for each in range(self._clients):
                self._prune(new, each, bookie)
        self._add(new, found, moves)

    def _hear(
        self,
        state: State,
        client: int,
        bookie: int,
        message: int,
        rest: int,
        found: list[State],
        moves: list[Move] | None,
    ) -> None:
        if moves is not None:
            text = str(said(self._answers[message]))
            moves.append(Move(bookie_id(bookie), self._names[client], text))
        outcome = self._tables[client].hear(state[self._host(client)], bookie, message)
        new = list(state)
        new[self._link0 + client * self._count + bookie] = rest
        self._carry_out(new, client, outcome, moves)
        self._add(new, found, moves)

    def _act(self, state: State, client: int, found: list[State], moves: list[Move] | None) -> None:
        """What the client may do by itself."""
        table, host = self._tables[client], self._host(client)
        for option in table.options(state[host]):
            at = self._link0 + client * self._count + option.bookie
            if not self._is_open(state, option, at):
                continue
            if moves is not None:
                moves.append(Move(self._names[client], self._names[client], str(option)))
            new = list(state)
            if option.cut:
                cuts, lost = self._budgets[state[_BUDGET]]
                new[_BUDGET] = self._budgets.of((cuts - 1, lost))
                new[at] = self._links.cut(new[at])
            self._carry_out(new, client, table.take(state[host], option), moves)
            self._add(new, found, moves)

    def _is_open(self, state: State, option: Option, at: int) -> bool:
        if option.link or option.adds:
            busy, adds = self._under_way(state[at])
            if not busy or (option.adds and not adds):
                return False
        return not option.cut or self._budgets[state[_BUDGET]][0] > 0

    def _under_way(self, link: int) -> tuple[bool, bool]:
        """Whether something is, and whether an add is, that may yet be answered."""
        facts = self._link_facts.get(link)
        if facts is None:
            _, requests, answers = self._links[link]
            adds = any(asked(self._requests[each]).is_add for each in requests) or any(
                said(self._answers[each]).is_add for each in answers
            )
            facts = self._link_facts[link] = (bool(requests or answers), adds)
        return facts

    # -- what a client's step brings about

    def _carry_out(
        self, new: list[int], client: int, outcome: Outcome, moves: list[Move] | None
    ) -> None:
        """The client's step itself, what it sends, and the rules about both."""
        if moves is not None:
            moves[-1] = moves[-1]._replace(text=outcome.text)
        host = self._host(client)
        new[host] = outcome.after
        first = self._link0 + client * self._count
        for bookie, request in outcome.sends:
            new[first + bookie] = self._links.send(new[first + bookie], request)
        for bookie in range(self._count):
            self._prune(new, client, bookie)
        if not outcome.plain:
            self._check(new, outcome)

    def _check(self, new: list[int], outcome: Outcome) -> None:
        now = self._records[new[_RECORD]].metadata
        for first, count in outcome.confirmed:
            for entry_id in range(first, first + count):
                rules.check_ack(now, self._facts(new), new[_ACKED] - 1, entry_id)
                new[_ACKED] = entry_id + 1
        if outcome.fences and self._white_box:
            rules.check_fences(now)
        if outcome.reads and self._white_box:
            rules.check_reads(now, self._facts(new))
        if outcome.finished is not None:
            rules.check_finished(now, outcome.finished)
        if outcome.promised is not None:
            rules.check_promise(now, new[_ACKED] - 1, outcome.promised)
        if outcome.missed is not None:
            rules.check_missed(now, *outcome.missed)
        if outcome.written is not None:
            version = self._records[new[_RECORD]].version + 1
            self._write(new, Register(outcome.written, version))

    def _facts(self, new: list[int]) -> rules.Facts:
        facts = self._bookies.facts
        return [facts(each) for each in new[self._bookie0 : self._link0]]

    # -- the metadata store

    def _start(self, state: State, found: list[State], moves: list[Move] | None) -> None:
        """Who has not begun reads the record; of recoverers that have not one is like another."""
        record = self._records[state[_RECORD]]
        read = [record.stored]
        if record.before is not None:
            read.append(Stored(record.before, record.version - 1))
        fresh = {self._kinds[c]: c for c in range(1, self._clients) if not state[self._host(c)]}
        for client in fresh.values():
            for stored in read:
                if moves is not None:
                    moves.append(Move("store", self._names[client], "reads the record"))
                new = list(state)
                outcome = self._tables[client].told(0, self._events.of(stored))
                self._carry_out(new, client, outcome, moves)
                self._add(new, found, moves)

    def _ask_store(
        self, state: State, client: int, found: list[State], moves: list[Move] | None
    ) -> None:
        task = self._tables[client].task(state[self._host(client)])
        if task is None or (not client and state[_TOLD]):
            return
        request = task.request
        record = self._records[state[_RECORD]]
        after: Register | None = None
        if isinstance(request, Write):
            if isinstance(task.purpose, End) and self._white_box:
                rules.check_end(record.metadata, request.version, task.purpose.marked_version)
            after = record.written(request, keep=self._settings.stale)
        name = self._names[client]

        def step(event: update.Event, text: str, *, carried_out: bool, late: bool = False) -> None:
            if moves is not None:
                moves.append(Move(name, "store", text))
            new = list(state)
            if not isinstance(event, Written | Conflict | Stored):
                cuts, lost = self._budgets[state[_BUDGET]]
                new[_BUDGET] = self._budgets.of((cuts, lost - 1))
            if late and isinstance(request, Write):
                new[_LATE] = self._late.of((*self._late[state[_LATE]], request))
            if carried_out and after is not None:
                self._write(new, after)
            number = self._events.of(event)
            if client:
                outcome = self._tables[client].told(state[self._host(client)], number)
                self._carry_out(new, client, outcome, moves)
                if moves is not None:
                    moves[-1] = moves[-1]._replace(text=f"{text}; {outcome.text}")
            else:
                new[_TOLD] = number
            self._add(new, found, moves)

        done = "" if after is None else f"record {after.version} is {show(after.metadata)}"
        kind = "reads" if isinstance(request, Read) else "writes"
        step(
            answer(record, request, after), f"{kind}: {done or 'nothing changes'}", carried_out=True
        )
        if isinstance(request, Write) and self._budgets[state[_BUDGET]][1]:
            step(Unavailable(), "writes: refused for now", carried_out=False)
            if after is not None:
                step(Unknown(), f"writes, the answer is lost: {done}", carried_out=True)
            step(
                Unknown(),
                "writes, no answer: it may come late",
                carried_out=False,
                late=after is not None,
            )

    def _hear_store(self, state: State, found: list[State], moves: list[Move] | None) -> None:
        if moves is not None:
            moves.append(Move("store", "writer", ""))
        new = list(state)
        new[_TOLD] = _NOTHING
        self._carry_out(new, 0, self._writer.told(state[_WRITER], state[_TOLD]), moves)
        self._add(new, found, moves)

    def _write_late(self, state: State, found: list[State], moves: list[Move] | None) -> None:
        """A write whose client has been told that there is no answer is carried out."""
        record = self._records[state[_RECORD]]
        writes = self._late[state[_LATE]]
        for write in dict.fromkeys(writes):
            after = record.written(write, keep=self._settings.stale)
            assert after is not None, "others were dropped"
            if moves is not None:
                text = f"a late write: record {after.version} is {show(after.metadata)}"
                moves.append(Move("store", "store", text))
            new = list(state)
            self._write(new, after)
            self._add(new, found, moves)

    def _write(self, new: list[int], after: Register) -> None:
        """The record changes.  Late writes over older versions can have no effect any more."""
        before = self._records[new[_RECORD]]
        number = self._records.of(after)
        key = (new[_RECORD], number, new[_ACKED], *new[self._bookie0 : self._link0])
        if key not in self._checked:
            acked = new[_ACKED] - 1
            rules.check_write(before.metadata, after.metadata, self._facts(new), acked)
            self._checked.add(key)
        new[_RECORD] = number
        new[_LATE] = _NOTHING

    # -- the state behind a step

    def _add(self, new: list[int], found: list[State], moves: list[Move] | None) -> None:
        if self._twins:
            self._put_in_order(new, moves)
        found.append(tuple(new))

    def _put_in_order(self, new: list[int], moves: list[Move] | None) -> None:
        """Of two recoverers the one with the smaller numbers comes first."""
        size, one = self._count, self._link0 + self._count
        two, end = one + size, one + 2 * size
        if (new[_HOSTS + 1], new[two:end]) < (new[_HOSTS], new[one:two]):
            new[_HOSTS], new[_HOSTS + 1] = new[_HOSTS + 1], new[_HOSTS]
            new[one:two], new[two:end] = new[two:end], new[one:two]
            if moves is not None:
                moves[-1] = moves[-1]._replace(exchanged=("r1", "r2"))

    def _prune(self, new: list[int], client: int, bookie: int) -> None:
        """Drop what can make no difference any more."""
        at = self._link0 + client * self._count + bookie
        link = new[at]
        host, stored = new[self._host(client)], new[self._bookie0 + bookie]
        key = (link, host, stored, bookie, self._kinds[client])
        kept = self._pruned.get(key)
        if kept is None:
            kept = self._pruned[key] = self._kept(link, client, host, bookie, stored)
        new[at] = kept

    def _kept(self, link: int, client: int, host: int, bookie: int, stored: int) -> int:
        if not self._settings.drops:
            return link
        table = self._tables[client]
        strays, requests, answers = self._links[link]
        serve = self._bookies.serve
        strays = tuple(r for r in strays if serve(stored, r).after != stored)
        requests = tuple(
            r for r in requests if table.cares(host, bookie, r) or serve(stored, r).after != stored
        )
        answers = tuple(a for a in answers if table.wants(host, bookie, a))
        if not requests and not answers and table.waits(host, bookie):
            name = self._names[client]
            raise BrokenRuleError("L1", f"{name} waits for b{bookie}, and nothing is under way")
        return self._links.of((strays, requests, answers))
