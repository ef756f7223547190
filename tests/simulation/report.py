"""The report of a failed run: all that it takes to understand it, and to reproduce it.

It has the command, the plan, the broken rules, and the story of the message or ledger that broke
one, as all hosts saw it: for the story the run is repeated and watched.
"""

import re
from collections.abc import Callable

from tests.history.events import (
    Attached,
    Delete,
    Deleted,
    Detach,
    Drained,
    Fault,
    FaultEnd,
    Healed,
    Leave,
    LedgerVersion,
    ListVersion,
    Seek,
    Sought,
    Stamped,
    Subscribe,
    Trimmed,
    Unsubscribe,
    Unsubscribed,
)
from tests.simulation.plan import Plan, describe
from tests.simulation.run import Outcome, Watching, simulate

_VIOLATIONS_MAX = 10
_LINES_MAX = 300
_OF_CURSORS = (
    Attached,
    Leave,
    Detach,
    Drained,
    Seek,
    Sought,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
    Delete,
    Deleted,
    Trimmed,
)
_OF_ENTRIES = {"add", "read", "write", "sync", "fence", "recovery", "no", "checkpoint"}
_ENTRY = re.compile(r"\b(\d+):(\d+)(?::\d+)?\b")
_VALUE = re.compile(r"\b[\w-]+\.\d+/\d+\b")
_LEDGER = re.compile(r"ledger (\d+)(?: entry (\d+))?")

Line = tuple[float, str]


def trace(plan: Plan, say: Callable[[str], object]) -> Outcome:
    """Run the plan, and report everything as it happens."""
    for line in describe(plan):
        say(line)

    def hear(at: float, host: str, text: str) -> None:
        say(f"{at:10.4f} s  {host:10} {text}")

    return simulate(plan, Watching(say=hear))


def explain(outcome: Outcome, say: Callable[[str], object]) -> None:
    """Report the violations and how they came about."""
    for line in describe(outcome.plan):
        say(line)
    for violation in outcome.violations[:_VIOLATIONS_MAX]:
        say(f"broken  {violation}")
    if len(outcome.violations) > _VIOLATIONS_MAX:
        say(f"        and {len(outcome.violations) - _VIOLATIONS_MAX} more")
    lines = story(outcome)
    say(f"story   of the first violation, {len(lines)} lines")
    for at, text in lines[:_LINES_MAX]:
        say(f"{at:10.4f} s  {text}")


def story(outcome: Outcome) -> list[Line]:
    """Return the story of the first violation: its message, entry and ledger, and all faults."""
    first = outcome.violations[0] if outcome.violations else ""
    values = set(_VALUE.findall(first))
    entries = {(int(ledger), int(entry)) for ledger, entry in _ENTRY.findall(first)}
    ledgers = {int(ledger) for ledger, _ in _LEDGER.findall(first)}
    entries |= {(int(ledger), int(entry)) for ledger, entry in _LEDGER.findall(first) if entry}
    ledgers |= {ledger for ledger, _ in entries}
    found: list[Line] = []

    def on_entry(at: float, text: str, ledger_id: int, entry_id: int) -> None:
        if (ledger_id, entry_id) in entries or (ledger_id in ledgers and entry_id < 0):
            found.append((at, text))

    def on_words(at: float, host: str, text: str) -> None:
        if not _is_moment(text):
            found.append((at, f"{host}: {text}"))

    again = simulate(outcome.plan, Watching(say=on_words, entry=on_entry))
    for stamped in again.events:
        if _concerns(stamped, values, entries, ledgers):
            found.append((stamped.at_ns / 1e9, f"{stamped.by} notes {stamped.event}"))
    found.sort(key=lambda line: line[0])
    if again.trace != outcome.trace:
        found.insert(0, (0.0, f"NOT THE SAME RUN: trace {outcome.trace}, then {again.trace}"))
    return found


def _is_moment(text: str) -> bool:
    """Return True for a moment of the network, which is told for the entries in question only."""
    return text.split(" ")[0] in _OF_ENTRIES


def _concerns(
    stamped: Stamped, values: set[str], entries: set[tuple[int, int]], ledgers: set[int]
) -> bool:
    event = stamped.event
    match event:
        case Fault() | FaultEnd() | Healed():
            return True
        case _ if isinstance(event, _OF_CURSORS):
            return bool(values)
        case LedgerVersion(ledger):
            return ledger in ledgers
        case ListVersion(_, _, listed):
            return bool(ledgers & set(listed))
        case _:
            pass
    if getattr(event, "value", None) in values:
        return True
    positions = [getattr(event, "position", None), *getattr(event, "positions", ())]
    return any(position is not None and position[:2] in entries for position in positions)
