"""SEAM metadata, simulated: the store in memory behind a network, with odds drawn from the seed.

    metadata = SimulatedMetadata(rng, clock, odds=Odds(lose_answer=0.02))
    nursery.start_soon(metadata.run)               in a task of no host, unless it has `timers`
    async with metadata.open("broker-1") as store:   in a task of the host

Requests and notices take time.  A write may be lost on its way, lose its answer, or be carried out
long after its caller gave up, even if the caller has died meanwhile.  Notices are delivered by a
task of the host: a paused host hears nothing until it goes on, and believes in its session.
A read may be answered from an older state (`tests.simulation.tree`).  Notices to a host may be held
up, but never behind an answer: a host that has read a new state has had its notices before.

A host that is crashed, paused or cut off does not ping; after the session timeout the store ends
its session, unless it is back by then.
"""

import random
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count

import trio

from daybook.wire.clock import WallClock
from daybook.wire.metadata.memory import MemorySession, MemoryStore, NoAnswerError, Request
from daybook.wire.metadata.store import MetadataError, SessionState
from tests.simulation.grouped import GroupedSession
from tests.simulation.scheduler import Timers
from tests.simulation.tree import Follower, RecordedTree


@dataclass(frozen=True, slots=True)
class Odds:
    """The probability of each fault for a request; the remaining requests are answered in order."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    late: float = 0.0  # writes only: carried out after the caller gave up
    stale: float = 0.0  # reads only: answered from an older state
    give_up_s: tuple[float, float] = (0.5, 2.0)
    late_s: tuple[float, float] = (2.0, 10.0)
    stale_s: tuple[float, float] = (0.0, 2.0)


class Fate(Enum):
    ANSWERED = auto()
    REQUEST_LOST = auto()
    ANSWER_LOST = auto()
    LATE = auto()


class Passage(Enum):
    """The fate of a write that has arrived at the store."""

    ANSWERED = auto()
    STOPPED = auto()  # not carried out, and not answered
    SILENT = auto()  # carried out, and not answered
    LATE = auto()  # carried out long after its caller gave up


LATE_S = 5.0


class SimulatedMetadata:
    """The ZooKeeper ensemble, and the network to it."""

    def __init__(
        self,
        rng: random.Random,
        clock: WallClock,
        *,
        delay_s: tuple[float, float] = (0.0003, 0.002),
        session_timeout_s: float = 2.0,
        request_timeout_s: float = 10.0,
        odds: Odds | None = None,
        trace: Callable[..., None] | None = None,
        timers: Timers | None = None,
        grouped: bool = False,
    ) -> None:
        """`grouped`: writes of a host share requests (`grouped`)."""
        self.store = MemoryStore(clock)
        self.tree = self.store.tree = RecordedTree(clock)
        self.odds = odds or Odds()
        self.slowness = 1.0  # factor for the delay of all requests and answers
        # The share of writes, the path above them, and how they fail.
        self.refusals: tuple[float, str, str] = (0.0, "", "")
        # Decides about each write as it arrives, by the host and the request.
        self.gate: Callable[[str, Request], Passage] | None = None
        # Told of each request as it leaves its host.
        self.tap: Callable[[str, Request], None] = lambda host, request: None
        self._away = False  # no host reaches the store
        self._cut: set[str] = set()  # hosts that do not reach the store
        self._timers = timers
        self._grouped = grouped
        self._rng = rng
        self._delay_s = delay_s
        self._session_timeout_s = session_timeout_s
        self._request_timeout_s = request_timeout_s
        self._trace = trace
        self._links: dict[str, SimulatedLink] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._earlier = trio.Event()

    async def run(self) -> None:
        """Carry all requests and notices, forever.  Not needed with `timers`."""
        while True:
            while self._due and self._due[0][0] <= trio.current_time():
                heappop(self._due)[2]()
            self._earlier = trio.Event()
            with trio.move_on_at(self._due[0][0] if self._due else float("inf")):
                await self._earlier.wait()

    @asynccontextmanager
    async def open(self, host: str) -> AsyncGenerator[MemorySession]:
        """Open a new session for the host, in one of its tasks."""
        link = self._links[host] = SimulatedLink(self, host)
        async with trio.open_nursery() as nursery:
            session = link.session = self._session(host, link, nursery)
            link.follower = session._tree = Follower(self.tree, self._draw_lag)
            nursery.start_soon(link.deliver)
            if self._away or host in self._cut:
                session.suspend()
            await link.connected(session)
            try:
                yield session
            finally:
                session.close()
                nursery.cancel_scope.cancel()

    def _session(self, host: str, link: "SimulatedLink", nursery: trio.Nursery) -> MemorySession:
        timeout_s = self._request_timeout_s
        if not self._grouped:
            return self.store.session(host, link=link, request_timeout_s=timeout_s)
        session = GroupedSession(self.tree, host, link, timeout_s, nursery)
        self.store._hosts.append(session)
        return session

    # -- faults

    def crash(self, host: str) -> None:
        """Kill the host; requests that it has sent are still on their way."""
        if host in self._links:
            self._links[host].session.crash()
            self._fall_silent(host)
            self._links[host].dead = True

    def pause(self, host: str) -> None:
        """Pause the host's session; holding back its tasks is the scheduler's part."""
        if host in self._links:
            self._fall_silent(host)

    def resume(self, host: str) -> None:
        if host in self._links:
            self._speak(host)

    def cut(self, host: str) -> None:
        """Cut the host off from the store, in both directions."""
        self._cut.add(host)
        if host in self._links:
            self._links[host].session.suspend()
            self._fall_silent(host)

    def heal(self, host: str) -> None:
        self._cut.discard(host)
        if host in self._links and not self._away:
            self._speak(host)
            self._links[host].session.resume()

    def go_away(self) -> None:
        """Cut all hosts off from the store; sessions last as long as that."""
        self._away = True
        self.store.suspend()

    def come_back(self) -> None:
        self._away = False
        for host, link in self._links.items():
            if host not in self._cut:
                link.session.resume()

    def hold_notices(self, host: str) -> None:
        """Hold back the host's notices until its next answer."""
        if host in self._links:
            self._links[host].holding = True

    def release_notices(self, host: str) -> None:
        """Send the notices that were held back, in a burst."""
        if host in self._links:
            self._links[host].holding = False
            self._links[host].catch_up()

    def move(self, host: str) -> None:
        """Move the session of the host to another server; only time is lost."""
        if host in self._links and host not in self._cut and not self._away:
            self._links[host].session.suspend()
            self._links[host].session.resume()

    def expire(self, host: str) -> None:
        """End the session of a host that is well."""
        if host in self._links:
            self._end(self._links[host].session)

    def _fall_silent(self, host: str) -> None:
        link = self._links[host]
        link.silences += 1
        silence, session = link.silences, link.session

        def time_out() -> None:
            if link.silences == silence:
                self._end(session)

        self.at(trio.current_time() + self._session_timeout_s, time_out)

    def _speak(self, host: str) -> None:
        """Let the host ping again, unless its process is gone."""
        if not self._links[host].dead:
            self._links[host].silences += 1

    def _end(self, session: MemorySession) -> None:
        self.trace("meta", "expire", session.store_session_id)
        self.store.expire(session.store_session_id)

    # -- used by links

    def at(self, when: float, call: Callable[[], None]) -> None:
        if self._timers is not None:
            self._timers.at(when, call)
            return
        heappush(self._due, (when, next(self._serial), call))
        self._earlier.set()

    def arrival(self) -> float:
        return trio.current_time() + self._rng.uniform(*self._delay_s) * self.slowness

    def _draw_lag(self) -> float:
        """Draw the age of the state that a read is answered from."""
        if self.odds.stale and self._rng.random() < self.odds.stale:
            return self.draw_s(self.odds.stale_s)
        return 0.0

    def draw_s(self, limits: tuple[float, float]) -> float:
        return self._rng.uniform(*limits)

    def check_right(self, request: Request) -> None:
        """Raise MetadataError if the write is rejected; then it was not carried out."""
        share, path, how = self.refusals
        if request.write and share and request.path.startswith(path) and self._rng.random() < share:
            raise MetadataError(f"{request.operation} {request.path}: {how}")

    def draw_fate(self, request: Request) -> Fate:
        drawn = self._rng.random()
        for fate, odds in (
            (Fate.REQUEST_LOST, self.odds.lose_request),
            (Fate.ANSWER_LOST, self.odds.lose_answer),
            (Fate.LATE, self.odds.late if request.write else 0.0),
        ):
            drawn -= odds
            if drawn < 0:
                return fate
        return Fate.ANSWERED

    def trace(self, *facts: object) -> None:
        if self._trace is not None:
            self._trace(*facts)


class SimulatedLink:
    """The link between one process of a host and the store: one queue for each direction."""

    def __init__(self, metadata: SimulatedMetadata, host: str) -> None:
        self.session: MemorySession  # set at once by the caller: session and link need each other
        self.follower: Follower
        self.silences = 0  # counts changes between silent and not
        self.dead = False  # the process at the host's end
        self.holding = False  # notices are held back
        self._held: list[Callable[[], None]] = []
        self._metadata = metadata
        self._host = host
        self._last_there = self._last_back = 0.0
        self._inbox: deque[Callable[[], None]] = deque()
        self._arrived = trio.Event()

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        metadata = self._metadata
        metadata.tap(self._host, request)
        metadata.check_right(request)
        fate = metadata.draw_fate(request)
        metadata.trace("meta", self._host, request.operation, request.path, fate.name)
        settled, answers = trio.Event(), list[bool]()

        def settle(answered: bool) -> None:
            answers.append(answered)
            settled.set()

        def arrive() -> None:
            passage = Passage.ANSWERED
            if request.write and metadata.gate is not None:
                passage = metadata.gate(self._host, request)
            if passage is Passage.ANSWERED:
                carry_out()
                return
            if passage is Passage.SILENT:
                carry_out(answer=False)
            elif passage is Passage.LATE:
                when = trio.current_time() + LATE_S
                metadata.at(when, lambda: carry_out(answer=False))
            settle(False)

        def carry_out(*, answer: bool = True) -> None:
            metadata.tree.writer = self._host
            if request.operation == "sync":
                self.follower.catch_up()
            try:
                execute()
            except NoAnswerError:
                settle(False)
                return
            finally:
                metadata.tree.writer = ""
            if answer and fate is Fate.ANSWERED:
                self.catch_up()
                metadata.at(self._back(), lambda: settle(True))

        if fate is Fate.LATE:
            metadata.at(trio.current_time() + metadata.draw_s(metadata.odds.late_s), arrive)
        elif fate is not Fate.REQUEST_LOST:
            self._last_there = max(self._last_there, metadata.arrival())
            metadata.at(self._last_there, arrive)
        if fate is Fate.ANSWERED:
            await settled.wait()
        else:
            with trio.move_on_after(metadata.draw_s(metadata.odds.give_up_s)):
                await settled.wait()
        if answers != [True]:
            raise NoAnswerError

    def notify(self, call: Callable[[], None]) -> None:
        if self.holding:
            self._held.append(call)
        else:
            self._send(call)

    def catch_up(self) -> None:
        """Send the late notices."""
        held, self._held = self._held, []
        for call in held:
            self._send(call)

    def _send(self, call: Callable[[], None]) -> None:
        def arrive() -> None:
            self._inbox.append(call)
            self._arrived.set()

        self._metadata.at(self._back(), arrive)

    async def deliver(self) -> None:
        """Call the callbacks of what has arrived, in a task of the host."""
        while True:
            while self._inbox:
                self._inbox.popleft()()
            self._arrived = trio.Event()
            await self._arrived.wait()

    async def connected(self, session: MemorySession) -> None:
        connected = trio.Event()

        def listener(state: SessionState) -> None:
            connected.set()

        session.add_session_listener(listener)
        if session.session_state is not SessionState.CONNECTED:
            await connected.wait()
        session.remove_session_listener(listener)

    def _back(self) -> float:
        self._last_back = max(self._last_back, self._metadata.arrival())
        return self._last_back
