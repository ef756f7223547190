"""Marks: interesting situations, and how often runs meet them.  A mark at 0 means weak faults."""

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from tests.history.events import (
    Ack,
    Acked,
    Attached,
    Deleted,
    Deliver,
    Error,
    LedgerVersion,
    ListVersion,
    Nack,
    Ok,
    Read,
    Send,
    Sought,
    Stamped,
    Trimmed,
    Unknown,
    Unsubscribed,
)
from tests.simulation.acts import Act
from tests.simulation.bulk_loads import MARKS as BULK_MARKS
from tests.simulation.steps import is_mark, matrix
from tests.simulation.workloads.administer import ACTS, MORE_ACTS
from tests.simulation.workloads.restrict import POLICIES
from tests.simulation.workloads.routes import HOWS

_FAULTS = tuple(f"fault {kind.__name__}" for kind in get_args(Act))
_ACTS = tuple(dict.fromkeys(f"{name}: done" for name in (*(each for each, _ in ACTS), *MORE_ACTS)))

SOMETIMES = (
    "a ledger was recovered",
    "recovery joined",
    "a ledger got a new fragment",
    "recovery closed with a new fragment",
    "a recovered ledger was empty",
    "a list had two open ledgers",
    "a list was trimmed",
    "list claimed",
    "a send had an unknown outcome",
    "a message was stored twice",
    "a message was delivered twice",
    "a consumer was moved",
    "an acknowledgement had no receipt",
    "a part of a batch was acknowledged",
    "a seek was carried out",
    "a subscription was ended",
    "a topic was deleted",
    "fence answered",
    "recovery read",
    "recovery add",
    "fenced",
    "no entry",
    "no ledger",
    "read only",
    "io error",
    "ledger deleted",
    "ledger marked",
    "copy",
    "copies moved",
    "mark cleared",
    "a copy was moved while its ledger was open",
    "a message was too large",
    "a plain writer closed its ledger",
    "an advanced writer closed its ledger",
    "a deferred writer closed its ledger",
    "a deferred writer flushed",
    "a writer of a ledger met InDoubtError",
    "a writer of a ledger met LedgerFencedError",
    "a ledger was taken over",
    "a ledger was followed to its end",
    "an open was given up",
    "acks flushed",
    "two tasks receive",
    "a large key or property was sent",
    "an entry is to be delivered later",
    "a named producer came back",
    "a repeat was not stored again",
    "an application repeated a message in doubt",
    "an entry that nobody can read was sent, encrypted",
    "an entry that nobody can read was sent, damaged",
    "a consumer met an entry that it cannot read",
    "a reader met an entry that it cannot read",
    "unload by REST: done",
    "stats by REST: done",
    "list by REST: done",
    "log moving a bundle to a broker with fewer bundles",
    "log a bundle was handed over",
    "log a bundle could not be handed over; any broker may own it soon",
    "bundle expected",
    "bundle held",
    "topics passed on",
    "bundle taken",
    "a broker was drained",
    "a drained broker was looked at",
    "cursor created",
    "cursor ledger created",
    "cursor deleted",
    "segment",
    "segment removed",
    "checkpoint",
    "log dropped ledgers that were deleted",
    "log removed ledgers that nothing names",
    "log a topic failed and is loaded again when a client asks for it",
    "log a topic was not closed in order; its next owner recovers it",
    "messages expired or were evicted",
    *(f"the policy {how} was set" for how in POLICIES),
    "expire: done",
    "log the subscriptions of this broker have too many unacknowledged messages, so those"
    " with the most get no more: acknowledge, or raise max_unacked_messages_per_broker",
    "log all subscriptions go on, because half of the unacknowledged messages are gone",
    *(f"route of {how}: done" for how in HOWS),
    "a message was sent to a retry topic",
    "a topic for the consumer of a pattern",
    "log nobody uses a topic, and it is deleted",
    "log a subscription had no consumer for long and is deleted",
    "many topics: all were read in the end",
    *BULK_MARKS,
    "a pipe was started again",
    "a pipe sent a dead letter",
    "a tombstone was sent",
    "a compaction ended: SUCCESS",
    "a key of a table view was changed",
    "a key of a table view was removed",
    *_FAULTS,
    *_ACTS,
)


def marks_of(events: Iterable[Stamped]) -> Counter[str]:
    """Count the marks that a history shows."""
    marks: Counter[str] = Counter()
    states: dict[int, LedgerVersion] = {}
    delivered: set[tuple[str, str]] = set()
    attached: Counter[tuple[str, str]] = Counter()
    sent, acked = 0, 0
    for stamped in events:
        match stamped.event:
            case LedgerVersion(ledger):
                before = states.get(ledger)
                states[ledger] = stamped.event
                if before is not None:
                    marks.update(_changes(before, stamped.event))
            case ListVersion(_, _, ledgers):
                states_there = [states[each].state for each in ledgers if each in states]
                marks["a list had two open ledgers"] += states_there.count("OPEN") > 1
            case Trimmed():
                marks["a list was trimmed"] += 1
            case Unknown():
                marks["a send had an unknown outcome"] += 1
            case Error(_, _, reason):
                marks["a message was too large"] += reason == "MessageTooLargeError"
            case Deliver(consumer, _, _, value):
                key = (consumer.split(".")[0], value)
                marks["a message was delivered twice"] += key in delivered
                delivered.add(key)
            case Attached(consumer, _, topic):
                attached[consumer, topic] += 1
                marks["a consumer was moved"] += attached[consumer, topic] > 1
            case Ack(_, _, _, positions):
                sent += 1
                marks["a part of a batch was acknowledged"] += any(p[2] >= 0 for p in positions)
            case Acked():
                acked += 1
            case Sought():
                marks["a seek was carried out"] += 1
            case Unsubscribed():
                marks["a subscription was ended"] += 1
            case Deleted():
                marks["a topic was deleted"] += 1
            case Nack():
                marks["a message was refused"] += 1
            case Send() | Ok() | Read():
                marks[type(stamped.event).__name__.lower()] += 1
            case _:
                pass
    marks["an acknowledgement had no receipt"] += sent - acked
    values = Counter(e.event.value for e in events if isinstance(e.event, Read) and _is_last(e))
    marks["a message was stored twice"] += sum(count > 1 for count in values.values())
    return marks


def _is_last(stamped: Stamped) -> bool:
    return isinstance(stamped.event, Read) and stamped.event.reader.startswith("reader.")


def _changes(before: LedgerVersion, after: LedgerVersion) -> list[str]:
    found: list[str] = []
    if after.state == "IN_RECOVERY":
        found.append("a ledger was recovered")
    if before.state == after.state == "OPEN" and after.fragments != before.fragments:
        earlier = before.fragments[:-1]
        moved = after.fragments[: len(earlier)] != earlier
        name = (
            "a copy was moved while its ledger was open" if moved else "a ledger got a new fragment"
        )
        found.append(name)
    if before.state == "IN_RECOVERY" and after.state == "CLOSED":
        if after.fragments != before.fragments:
            found.append("recovery closed with a new fragment")
        if after.last_entry < 0:
            found.append("a recovered ledger was empty")
    return found


def table(runs: list[Counter[str]]) -> list[str]:
    """Format for people in how many runs each mark was met, and how often in all."""
    total: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for run in runs:
        total.update(run)
        met.update({mark for mark, count in run.items() if count})
    lines = [f"{'met in runs':>12} {'in all':>10}  situation, in {len(runs)} runs"]
    lines += [f"{met[mark]:12} {total[mark]:10}  {mark}" for mark in SOMETIMES]
    others = sorted(mark for mark in total if mark not in SOMETIMES and not is_mark(mark))
    lines += [f"{met[mark]:12} {total[mark]:10}  {mark}" for mark in others]
    lines += matrix(runs)
    never = [mark for mark in SOMETIMES if not met[mark]]
    if never:
        lines.append(f"never: {', '.join(never)}")
    return lines
