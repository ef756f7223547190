"""Sources of racks, the directory that uses them, and bookies avoided for failing often."""

import random
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import NotEnoughBookiesError
from daybook.bookie.ledger.ensemble import (
    BookieDirectory,
    DirectoryLimits,
    Quarantine,
    QuarantineLimits,
)
from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.ledger.protocol.racks import DEFAULT_RACK, RackRule
from daybook.bookie.ledger.racks import (
    RACK_PROPERTY,
    Placement,
    RackError,
    RackFile,
    RackScript,
    RackSource,
    RackTable,
    RegisteredRacks,
)
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, register_bookie, unregister_bookie
from daybook.wire.clock import SystemClock
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.memory import MemorySession, MemoryStore

PATHS = LedgerPaths()
QUORUMS = Quorums(3, 3, 2)
B1, B2 = BookieId("h1:3181"), BookieId("h2:3181")
INFOS = [BookieInfo("h1:3181", "10.0.0.1", 3181), BookieInfo("named", "h2", 3181)]


@asynccontextmanager
async def directory_with(
    racks: Mapping[str, str], placement: Placement | None = None, *, away: Sequence[str] = ()
) -> AsyncGenerator[tuple[BookieDirectory, MemorySession]]:
    """Return a directory of bookies that announce these racks."""
    session = MemoryStore(SystemClock()).session()
    await ensure_layout(session, PATHS, random.Random(1))
    for name, rack in racks.items():
        await create_cookie(session, PATHS, Cookie(name, ["/j"], ["/d"], "i"))
        if name not in away:
            info = BookieInfo(name, "host", 3181, {RACK_PROPERTY: rack})
            await register_bookie(session, PATHS, info)
    directory = BookieDirectory(
        session, PATHS, random.Random(3), DirectoryLimits(racks_refresh_s=60), placement
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(directory.follow)
        await trio.sleep(0.01)
        yield directory, session
        nursery.cancel_scope.cancel()


def in_racks(letters: str) -> dict[str, str]:
    return {f"{letter}{number}:1": f"/{letter}" for number, letter in enumerate(letters)}


async def test_ensembles_are_spread_over_the_racks_that_bookies_announce(
    autojump_clock: Clock,
) -> None:
    async with directory_with(in_racks("aaaabbc")) as (directory, _):
        drawn: set[tuple[str, ...]] = set()
        for _ in range(100):
            ensemble = (await directory.choose(QUORUMS)).ensemble
            drawn.add(ensemble)
            assert {bookie[0] for bookie in ensemble} == {"a", "b", "c"}
        assert len({tuple(sorted(e)) for e in drawn}) == 8


async def test_without_enforcing_one_rack_will_do(autojump_clock: Clock) -> None:
    async with directory_with(in_racks("aaa")) as (directory, _):
        assert len((await directory.choose(QUORUMS)).ensemble) == 3


async def test_when_it_is_enforced_an_error_says_what_to_do(autojump_clock: Clock) -> None:
    placement = Placement(rule=RackRule(2, enforced=True))
    async with directory_with(in_racks("aaa"), placement) as (directory, _):
        with pytest.raises(
            NotEnoughBookiesError, match="2 racks for each write set; their racks are"
        ):
            await directory.choose(QUORUMS)
        assert len((await directory.choose(Quorums(3, 1, 1))).ensemble) == 3


async def test_an_ensemble_that_is_filled_up_counts_those_who_are_there(
    autojump_clock: Clock,
) -> None:
    placement = Placement(rule=RackRule(2, enforced=True))
    racks = in_racks("aab")
    async with directory_with(racks, placement, away=["b2:1"]) as (directory, _):
        with pytest.raises(NotEnoughBookiesError, match="racks"):
            await directory.choose(QUORUMS)
    async with directory_with(racks, placement, away=["a0:1"]) as (directory, _):
        assert (await directory.choose(QUORUMS)).missing == ("a0:1",)
    async with directory_with(racks, away=["b2:1"]) as (directory, _):
        assert (await directory.choose(QUORUMS)).missing == ("b2:1",)


async def test_a_bookie_is_replaced_by_one_of_the_rack_that_is_missing_now(
    autojump_clock: Clock,
) -> None:
    async with directory_with(in_racks("abcabc")) as (directory, _):
        names = [BookieId(name) for name in in_racks("abcabc")]
        ensemble = tuple(names[:3])
        assert directory.replace(ensemble, [names[1]], QUORUMS) == (names[0], names[4], names[2])
        both = directory.replace(ensemble, [names[0], names[2]], QUORUMS)
        assert both is not None
        assert (both[1], sorted(both)) == (names[1], sorted([*names[1:2], names[3], names[5]]))


async def test_an_enforced_rule_postpones_a_change_that_would_break_it(
    autojump_clock: Clock,
) -> None:
    names = [BookieId(name) for name in in_racks("abbb")]
    ensemble = (names[0], names[1], names[2])
    for enforced, expected in [(True, None), (False, (names[3], names[1], names[2]))]:
        placement = Placement(rule=RackRule(2, enforced=enforced))
        async with directory_with(in_racks("abbb"), placement) as (directory, _):
            assert directory.replace(ensemble, [names[0]], QUORUMS) == expected


async def test_a_bookie_that_returns_with_another_rack_has_moved(autojump_clock: Clock) -> None:
    async with directory_with({"x:1": "/old"}) as (directory, session):
        assert directory.rack(BookieId("x:1")) == "/old"
        await unregister_bookie(session, PATHS, "x:1")
        await trio.sleep(0.1)
        await register_bookie(session, PATHS, BookieInfo("x:1", "h", 1, {RACK_PROPERTY: "/new"}))
        await trio.sleep(0.1)
        assert directory.rack(BookieId("x:1")) == "/new"


# -- other sources


async def test_a_table_names_ids_or_hosts() -> None:
    found = await RackTable({"h1": "/r1", "h2": "/r2"}).racks(INFOS)
    assert found == {"h1:3181": "/r1", "named": "/r2"}
    found = await RackTable({"named": "/r3", "10.0.0.1": "/r4"}).racks(INFOS)
    assert found == {"h1:3181": "/r4", "named": "/r3"}
    assert (await RackTable({}).racks(INFOS))["named"] == DEFAULT_RACK


async def test_a_file_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text("# where bookies stand\nh1:3181 /r1\n\nnamed   /r2   # by id\n")
    source = RackFile(path)
    assert await source.racks(INFOS) == {"h1:3181": "/r1", "named": "/r2"}
    path.write_text("named /r3\n")
    assert await source.racks(INFOS) == {"h1:3181": DEFAULT_RACK, "named": "/r3"}
    path.write_text("named is at /r3\n")
    with pytest.raises(RackError, match="line 1: a line is the id or host of a bookie"):
        await source.racks(INFOS)
    with pytest.raises(ValueError, match="line 1"):
        RackFile(path)
    with pytest.raises(ValueError, match="cannot be read"):
        RackFile(tmp_path / "none")


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "topology"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_a_program_is_given_hosts(tmp_path: Path) -> None:
    path = script(tmp_path, "for host in sys.argv[2:]: print(sys.argv[1] + host)")
    source = RackScript(path, "/rack-of-")
    expected = {"h1:3181": "/rack-of-10.0.0.1", "named": "/rack-of-h2"}
    assert await source.racks(INFOS) == expected
    assert await source.racks([]) == {}


@pytest.mark.parametrize(
    ("body", "why"),
    [("print('/r1')", "1 racks for 2 hosts"), ("sys.exit(3)", "exit status 3")],
)
async def test_a_program_that_does_not_say_is_an_error(tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(RackError, match=why):
        await RackScript(script(tmp_path, body)).racks(INFOS)
    with pytest.raises(RackError, match="the rack script failed"):
        await RackScript(str(tmp_path / "none")).racks(INFOS)
    with pytest.raises(ValueError, match="needs a command"):
        RackScript()


class Moody(RackSource):
    """A source that returns what a test sets."""

    def __init__(self) -> None:
        self.answer: Callable[[], Mapping[str, str]] = dict
        self.asked = 0
        self.hangs = False

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        self.asked += 1
        await trio.sleep(1000 if self.hangs else 0)
        return self.answer()


async def test_what_a_source_said_stays_true_while_it_cannot_say(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    source = Moody()
    source.answer = lambda: {"x:1": "/r1"}
    async with directory_with({"x:1": ""}, Placement(source)) as (directory, session):
        assert directory.rack(BookieId("x:1")) == "/r1"

        def fail() -> Mapping[str, str]:
            raise RackError("the switch is away")

        source.answer = fail
        await trio.sleep(200)
        assert source.asked == 4
        assert directory.rack(BookieId("x:1")) == "/r1"
        assert caplog.text.count("the switch is away") == 1, "once is enough"
        source.answer = lambda: {"x:1": "/r2"}
        await trio.sleep(60)
        assert directory.rack(BookieId("x:1")) == "/r2"
        source.hangs = True
        await register_bookie(session, PATHS, BookieInfo("y:1", "h", 1))
        await trio.sleep(6)
        assert "y:1" in directory.writable, "a list waits for racks for a while only"


def test_what_bookies_do_not_say_is_not_made_up() -> None:
    async def main() -> None:
        assert await RegisteredRacks().racks(INFOS) == {"h1:3181": "", "named": ""}

    trio.run(main)


# -- failing often


def test_who_fails_thrice_in_a_minute_is_not_trusted_for_a_while() -> None:
    quarantine = Quarantine(QuarantineLimits())
    for now in (0.0, 20.0, 40.0):
        assert quarantine.trusted(B1, now)
        for _ in range(5):  # several connections report the same failure
            quarantine.failed(B1, now, "reset")
        assert B1 in quarantine
        assert not quarantine.trusted(B1, now)
        assert quarantine.answered(B1, now) is not None
        assert quarantine.answered(B1, now) is None
    assert B1 not in quarantine
    assert not quarantine.trusted(B1, 339)
    assert quarantine.trusted(B1, 340)
    assert quarantine.trusted(B2, 40)


def test_failures_that_are_far_apart_are_forgotten() -> None:
    quarantine = Quarantine(QuarantineLimits())
    for now in range(0, 1000, 31):
        quarantine.failed(B1, now, "reset")
        quarantine.answered(B1, now)
        assert quarantine.trusted(B1, now)


@pytest.mark.parametrize(
    ("status", "trusted"),
    [(Status.IO_ERROR, False), (Status.READ_ONLY, True), (Status.TOO_MANY_REQUESTS, True)],
)
async def test_a_full_or_busy_bookie_is_a_sound_one(
    status: Status, trusted: bool, autojump_clock: Clock
) -> None:
    async with directory_with(in_racks("aaaaaaaa")) as (directory, _):
        one = BookieId("a0:1")
        for _ in range(3):
            directory.bookie_refused(one, status)
            directory._quarantine.answered(one, trio.current_time())
        drawn = {b for _ in range(100) for b in (await directory.choose(QUORUMS)).ensemble}
        assert (one in drawn) == trusted


async def test_who_fails_often_is_taken_when_it_needs_to_be(autojump_clock: Clock) -> None:
    async with directory_with(in_racks("aaab")) as (directory, _):
        flapping = BookieId("b3:1")
        for _ in range(3):
            directory.bookie_failed(flapping, "reset")
            directory._quarantine.answered(flapping, trio.current_time())
        assert directory.is_usable(flapping)
        chosen = (await directory.choose(QUORUMS)).ensemble
        assert flapping in chosen, "rather than all copies in one rack"
        others = (await directory.choose(Quorums(3, 1, 1))).ensemble
        assert flapping not in others
        assert flapping in (await directory.choose(Quorums(4, 1, 1))).ensemble
        spared = directory.replace(others, [others[0]], Quorums(3, 1, 1))
        assert spared == (flapping, *others[1:]), "and to take somebody's place"
