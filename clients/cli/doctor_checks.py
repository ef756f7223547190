"""The checks of `daybook doctor`: from answers to verdicts, without a question of their own.

    ok          looked at, and nothing needs attention
    attention   works, and somebody has to do something
    failed      does not work
    unknown     was not answered, wholly or in part, and what was answered is fine

A check that finds something says so even if other answers are missing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Literal, TypeAlias

from daybook.clients.cli.doctor_answers import (
    NO_ZOOKEEPER_REMEDY,
    NOT_ASKED,
    Activity,
    BookieAnswers,
    ClusterAnswers,
    Stats,
    Unknown,
)
from daybook.clients.cli.output import counted
from daybook.clients.cli.recovery_status import as_bytes, as_time
from daybook.clients.cli.times import duration_text
from daybook.clients.spark.subscription_marks import PROPERTY_HOST, PROPERTY_TOPICS
from daybook.wire.topics import TopicName

Verdict: TypeAlias = Literal["ok", "attention", "failed", "unknown"]

COMMITTED_LONG_S = 120.0  # The brokers apply a batch within seconds, and look again each minute.
WAITED_LONG_S = 10.0  # A broker loads hundreds of topics a second, unless something holds it up.
LOADED_LONG_S = 30.0
LOST_LATELY_S = 86_400.0  # A session that was lost earlier is only a note.
FREE_BYTES_MIN = 1 << 30  # A bookie becomes read-only at 256 MiB.
FREE_SHARE_MIN = 0.05
_COPIES = 3
_ACKS = 2
_SHOWN = 3
_MS_PER_DAY = 86_400_000
_ASK_AGAIN = "Run `daybook doctor` again, with a longer --timeout if the cluster is slow."


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` has the command to run; it is empty if nothing is to be done.

    `items` are all findings, of which the sentence shows the first ones.
    """

    name: str
    verdict: Verdict
    sentence: str
    remedy: str = ""
    items: Sequence[str] = ()


def all_checks(answers: ClusterAnswers) -> list[Check]:
    return [_with_remedy(check(answers), answers) for check in _CHECKS]


def rows(checks: Sequence[Check], answers: ClusterAnswers) -> list[Check]:
    """Return the checks for a table: those that are unknown, and have one remedy, are one row."""
    together: dict[str, list[Check]] = {}
    for check in checks:
        if check.verdict == "unknown":
            together.setdefault(check.remedy, []).append(check)
    groups = [each for each in together.values() if len(each) > 1]
    grouped = [check for group in groups for check in group]
    return [
        *(check for check in checks if check not in grouped),
        *(_one_row(group, answers) for group in groups),
    ]


def _one_row(group: Sequence[Check], answers: ClusterAnswers) -> Check:
    """Return one check for several.  A reason that several of them have is named once."""
    texts = [text for check in group for text in check.items or (check.sentence,)]
    whys = dict.fromkeys(
        next((why for why in answers.remedies if text.endswith(why)), text) for text in texts
    )
    shortest = [
        why for why in whys if not any(why != other and why.endswith(other) for other in whys)
    ]
    names = "\n".join(check.name for check in group)
    sentence = f"Not everything is known: {_these(shortest)}."
    return Check(names, "unknown", sentence, group[0].remedy, shortest)


def _with_remedy(check: Check, answers: ClusterAnswers) -> Check:
    """Return a check with another remedy if it is known what keeps the answer away."""
    texts = (check.sentence, *check.items)
    if check.verdict == "unknown":
        for why, remedy in answers.remedies.items():
            if any(why in text for text in texts):
                return replace(check, remedy=remedy)
        if check.remedy == _ASK_AGAIN and isinstance(answers.store, Unknown) and answers.store.away:
            # Brokers that have lost contact with ZooKeeper cannot answer many questions.
            return replace(check, remedy=NO_ZOOKEEPER_REMEDY)
    return check


# -- brokers


def check_brokers(answers: ClusterAnswers) -> Check:
    """Check that every registered broker answers and is ready.

    A broker that was named in the admin URL and is not registered should answer, too.
    """
    name, registered = "brokers", answers.registered
    if isinstance(registered, Unknown):
        return _check_some_brokers(answers, registered)
    if not registered:
        remedy = "Start one with `daybook broker` (`daybook local start broker-1`)."
        return Check(name, "failed", "No broker is registered.", remedy)
    found: dict[str, str] = {}
    unasked: list[str] = []
    for broker in sorted({*registered, *answers.named}):
        said = answers.brokers.get(broker)
        ready = NOT_ASKED if said is None else said.ready
        where = "is registered" if broker in registered else "is in the admin URL"
        if isinstance(ready, Unknown) and not ready.asked:
            unasked.append(f"{broker} {where} and was not asked: {ready.why}")
        elif isinstance(ready, Unknown):
            found[broker] = f"{broker} {where} and does not answer: {ready.why}"
        elif ready:
            found[broker] = f"{broker} is not ready: {ready}"
    if found:
        items = [*found.values(), *unasked]
        verdict: Verdict = "failed" if {*registered} & {*found} else "attention"
        return Check(name, verdict, f"{_these(items)}.", _ask_it(answers, next(iter(found))), items)
    if unasked:
        return _unknown(name, unasked)
    return Check(name, "ok", f"Every registered broker answers and is ready ({len(registered)}).")


def _check_some_brokers(answers: ClusterAnswers, registered: Unknown) -> Check:
    """Check the brokers that were asked, although it is not known which ones are registered."""
    unready = {
        broker: f"{broker} is not ready: {said.ready}"
        for broker, said in sorted(answers.brokers.items())
        if said.answers and said.ready
    }
    why = f"It is not known which brokers are registered: {registered.why}."
    if unready:
        items = list(unready.values())
        remedy = _ask_it(answers, next(iter(unready)))
        return Check("brokers", "failed", f"{_these(items)}. {why}", remedy, items)
    return Check(
        "brokers",
        "unknown",
        why,
        "`daybook local status` shows the parts of a standalone cluster; --admin-url says where"
        " brokers are.",
        [registered.why],
    )


def _ask_it(answers: ClusterAnswers, broker: str) -> str:
    said = answers.brokers.get(broker)
    url = said.url if said is not None and said.url else f"http://{broker}"
    trust = " --cacert AUTHORITY" if url.startswith("https") else ""
    return (
        f"Look at its log, and ask it with `curl{trust} {url}/readyz`; restart it if that does not"
        " help (`daybook local status` shows the parts of a standalone cluster)."
    )


def check_token_files(answers: ClusterAnswers) -> Check:
    """Check that the files of keys and of revoked tokens are in force as they are now."""
    name = "token files"
    found: list[str] = []
    unseen: list[str] = []
    for broker, said in sorted(answers.brokers.items()):
        if isinstance(said.token_files, Unknown):
            unseen.append(f"{broker}: {said.token_files.why}")
        else:
            those = sorted(said.token_files.items())
            found += [f"{broker} cannot use {file}: {why}" for file, why in those if why]
    if found:
        return Check(
            name,
            "attention",
            f"The former content stays in force, and a token that was revoked may still be let in:"
            f" {_these(found)}.",
            "Correct the file on that machine: `daybook tokens check FILE` names each wrong line of"
            " a list of revoked tokens.",
            found,
        )
    if unseen or not answers.brokers:
        return _unknown(name, unseen or ["no broker was asked"])
    return Check(name, "ok", "Every broker uses its files of keys and of revoked tokens.")


def _activities(answers: ClusterAnswers) -> tuple[dict[str, Activity], list[str]]:
    """Return what the brokers tell of themselves, and which do not tell, and why.

    A broker that is not registered, and is only named in the admin URL, need not tell.
    """
    told: dict[str, Activity] = {}
    unseen: list[str] = []
    registered = answers.registered
    for broker, said in sorted(answers.brokers.items()):
        if not isinstance(said.activity, Unknown):
            told[broker] = said.activity
        elif isinstance(registered, Unknown) or broker in registered:
            unseen.append(f"{broker}: {said.activity.why}")
    return told, unseen if answers.brokers else ["no broker was asked"]


def check_sessions(answers: ClusterAnswers) -> Check:
    """Check that no broker has lost its session, and all of its topics with it, of late."""
    name = "sessions"
    told, unseen = _activities(answers)
    lost = {broker: each for broker, each in told.items() if each.sessions_lost}
    items = [
        f"{broker} {_count(each.sessions_lost, 'time', 'times')} since its start, the last time"
        f" {duration_text(round(each.lost_ago_s or 0))} ago"
        for broker, each in lost.items()
    ]
    lately = any((each.lost_ago_s or 0) < LOST_LATELY_S for each in lost.values())
    sentence = (
        "Brokers have lost their sessions with ZooKeeper, and each time dropped all of their"
        f" topics: {_these(items)}."
    )
    remedy = (
        "ZooKeeper did not hear of them for `session_timeout_s` of the broker: a machine was too"
        " busy or paused, the network or ZooKeeper too slow. Give the machine more room, or raise"
        " that setting."
    )
    if lately:
        return Check(name, "attention", sentence, remedy, items)
    if unseen:
        return _unknown(name, unseen)
    if items:
        return Check(name, "ok", f"A note: {sentence}", remedy, items)
    return Check(name, "ok", "No broker has lost its session with ZooKeeper since its start.")


def check_versions(answers: ClusterAnswers) -> Check:
    """Check that all brokers run the same release, and can read the same formats."""
    name = "versions"
    known: dict[str, list[str]] = {}
    unseen: list[str] = []
    for broker, said in sorted(answers.brokers.items()):
        if isinstance(said.version, Unknown):
            unseen.append(f"{broker}: {said.version.why}")
        else:
            known.setdefault(said.version, []).append(broker)
    items = [f"{version}: {', '.join(those)}" for version, those in sorted(known.items())]
    if len(known) > 1:
        sentence = f"The brokers run different releases ({'; '.join(items)})."
        remedy = "Finish the upgrade: `daybook brokers drain BROKER` before each restart."
        return Check(name, "attention", sentence, remedy, items)
    if isinstance(answers.guards, Unknown):
        unseen.append(f"the formats: {answers.guards.why}")
    else:
        every = frozenset[str]().union(*(guard.formats for guard in answers.guards))
        lacking = [
            f"{guard.broker} lacks {', '.join(sorted(every - guard.formats))}"
            for guard in answers.guards
            if every - guard.formats
        ]
        if lacking:
            return Check(
                name,
                "attention",
                f"Not every broker can read every format, so new ones are not written:"
                f" {_these(lacking)}.",
                "Finish the upgrade: `daybook brokers drain BROKER` before each restart.",
                lacking,
            )
    if unseen or not known:
        return _unknown(name, unseen or ["no broker was asked"])
    return Check(name, "ok", f"All brokers run {next(iter(known))} and read the same formats.")


# -- the metadata store and the bookies


def check_store(answers: ClusterAnswers) -> Check:
    name, store = "metadata store", answers.store
    if isinstance(store, Unknown):
        what = "is away, so brokers load no topic, and" if store.away else "was not asked, so"
        return Check(
            name,
            "failed" if store.away else "unknown",
            f"ZooKeeper {what} little is known about bookies: {store.why}.",
            NO_ZOOKEEPER_REMEDY,
            [store.why],
        )
    if store:
        remedy = "`daybook cluster show` tells which ledgers the topics are bound to."
        return Check(name, "failed", f"{store}.", remedy)
    return Check(name, "ok", "ZooKeeper answers.")


def check_bookies(answers: ClusterAnswers) -> Check:
    """Check that every bookie serves, and that enough of them take entries for the quorums."""
    name, bookies = "bookies", answers.bookies
    if isinstance(bookies, Unknown):
        return _unknown(name, [bookies.why])
    known = len(bookies)
    taking = [each for each in bookies if each.state == "writable" and not each.silent]
    quorums = None if isinstance(answers.quorums, Unknown) else answers.quorums
    write, ack = quorums or (max(1, min(_COPIES, known)), max(1, min(_ACKS, known)))
    found = [said for each in bookies if (said := _trouble_of(each))]
    avoided, untold = _quarantines(answers)
    found += avoided
    rest = f": {_these(found)}" if found else ""
    remedy = (
        "Start those that are away (`daybook local start`), or remove one that never comes back"
        " (`daybook bookies decommission BOOKIE`); `daybook bookies read-only BOOKIE --off` ends an"
        " order, and `daybook bookies health` counts the ledgers on each. If a single broker does"
        " not use a bookie, look at the network between them."
    )
    if len(taking) < ack:
        sentence = (
            f"Nothing can be published: {len(taking)} of {known} bookies take entries, and each"
            f" entry must be on {ack} of them{rest}."
        )
        return Check(name, "failed", sentence, remedy, found)
    if len(taking) < write:
        sentence = (
            f"{len(taking)} of {known} bookies take entries, and new entries should have {write}"
            f" copies{rest}."
        )
        return Check(name, "attention", sentence, remedy, found)
    if found:
        return Check(name, "attention", f"{_these(found)}.", remedy, found)
    if isinstance(answers.quorums, Unknown):
        return _unknown(name, [f"the quorums of the brokers: {answers.quorums.why}"])
    if untold:
        return _unknown(name, untold)
    sentence = (
        f"Every bookie takes entries ({known}), for {_count(write, 'copy', 'copies')} of each."
    )
    return Check(name, "ok", sentence)


def _quarantines(answers: ClusterAnswers) -> tuple[list[str], list[str]]:
    """Return which broker does not use which bookie, and which brokers did not tell.

    A bookie that is away or silent is named once, and not for each broker.
    """
    assert not isinstance(answers.bookies, Unknown)
    serving = {b.bookie for b in answers.bookies if b.state == "writable" and not b.silent}
    avoided: list[str] = []
    untold: list[str] = []
    for name, broker in sorted(answers.brokers.items()):
        if not isinstance(broker.quarantine, Unknown):
            avoided += [
                f"the broker {name} does not use {bookie}: {why}"
                for bookie, why in sorted(broker.quarantine.items())
                if bookie in serving
            ]
        elif broker.answers:
            untold.append(f"the bookies that {name} uses: {broker.quarantine.why}")
    return avoided, untold


def _trouble_of(bookie: BookieAnswers) -> str:
    """Return what is wrong with one bookie; empty if nothing is."""
    name = bookie.bookie
    if bookie.state == "away":
        return f"{name} is away"
    if bookie.silent:
        return f"{name} is registered and does not answer: {bookie.silent}"
    if bookie.order is not None:
        return f"{name} has the order {bookie.order}"
    why = f": {bookie.unhealthy}" if bookie.unhealthy else ""
    if bookie.state == "readonly":
        return f"{name} is read-only{why}"
    return f"{name} is not healthy{why}" if why else ""


def check_disks(answers: ClusterAnswers) -> Check:
    name, bookies = "disks", answers.bookies
    if isinstance(bookies, Unknown):
        return _unknown(name, [bookies.why])
    full: list[str] = []
    unseen: list[str] = []
    for each in bookies:
        if each.free_bytes is None or each.total_bytes is None:
            unseen.append(f"{each.bookie} did not tell")
        elif each.free_bytes < max(FREE_BYTES_MIN, FREE_SHARE_MIN * each.total_bytes):
            full.append(f"{each.bookie} has {as_bytes(each.free_bytes)} left")
    if full:
        return Check(
            name,
            "attention",
            f"Disks are nearly full, and bookies take no entries when they are: {_these(full)}.",
            "Add disks or bookies, or keep less: `daybook topics retention --minutes N --megabytes"
            " N`, and delete subscriptions that nobody uses.",
            full,
        )
    if unseen:
        return replace(
            _unknown(name, unseen),
            remedy="`daybook bookies list` shows which bookies are away; start them.",
        )
    least = min((each.free_bytes or 0 for each in bookies), default=0)
    return Check(name, "ok", f"Every bookie has room, at least {as_bytes(least)}.")


def check_recovery(answers: ClusterAnswers) -> Check:
    """Check that no ledger lacks copies, and that auto-recovery can restore them."""
    name, found = "copies", answers.recovery
    if isinstance(found, Unknown):
        return _unknown(name, [found.why])
    status = "`daybook autorecovery status` shows what is under way"
    if found.alarms:
        return Check(
            name,
            "failed",
            f"{counted(len(found.alarms), 'ledger')} cannot be repaired: {_these(found.alarms)}.",
            f"{status}; bring back the bookies that are away, and `daybook ledgers check LEDGER`.",
            found.alarms,
        )
    capped = " or more" if found.read is not None and found.read < found.marked else ""
    lost = [f"{bookie} lacks {count:,}{capped}" for bookie, count in sorted(found.lost.items())]
    if found.marked and not found.workers:
        sentence = f"{_lack(found.marked)} copies, and no worker restores them."
        return Check(name, "failed", sentence, "Run `daybook autorecovery run`.", lost)
    if found.paused:
        sentence = f"Auto-recovery is paused, and {_lack(found.marked)} copies."
        return Check(name, "attention", sentence, "Run `daybook autorecovery resume`.", lost)
    if found.marked:
        those = f": {_these(lost)}" if lost else ""
        sentence = f"{_lack(found.marked)} copies, which are being restored{those}"
        return Check(name, "attention", f"{sentence}.", f"Wait; {status}.", lost)
    return Check(name, "ok", "No ledger is marked to lack copies.")


# -- topics


def check_sinks(answers: ClusterAnswers) -> Check:
    name, sinks = "sinks", answers.sinks
    if isinstance(sinks, Unknown):
        return _unknown(name, [sinks.why])
    blocked = [f"{s.name}{_because(s.reasons)}" for s in sinks if s.state == "BLOCKED"]
    if blocked:
        return Check(
            name,
            "failed",
            f"{_count(len(blocked), 'sink is', 'sinks are')} BLOCKED: {_these(blocked)}.",
            f"`daybook sinks show {_first(blocked)}` tells why, and `daybook sinks resolve`"
            " decides.",
            blocked,
        )
    committed = [each for each in sinks if each.state == "COMMITTED"]
    long = [
        f"{each.name} since {as_time(each.since_ms)}{_because(each.reasons)}"
        for each in committed
        if each.since_ms is not None and answers.now_ms - each.since_ms > COMMITTED_LONG_S * 1000
    ]
    if long:
        return Check(
            name,
            "attention",
            f"{_count(len(long), 'sink is', 'sinks are')} COMMITTED for long: {_these(long)}.",
            f"`daybook sinks show {_first(long)}` tells why, and `daybook sinks roll-forward"
            f" {_first(long)}` tries now.",
            long,
        )
    if unseen := [each.name for each in committed if each.since_ms is None]:
        return _unknown(name, [f"since when {each} is COMMITTED" for each in unseen])
    return Check(name, "ok", f"No sink waits for long ({counted(len(sinks), 'sink')}).")


def check_loads(answers: ClusterAnswers) -> Check:
    """Tell of the topics that brokers are loading, as after the loss of a broker."""
    name = "loads of topics"
    told, unseen = _activities(answers)
    busy = {b: a for b, a in told.items() if a.loading or a.waiting or a.requests_waiting}
    items = [_busy(broker, each) for broker, each in busy.items()]
    long = [each for each in busy.values() if _takes_long(each)]
    if long:
        slow = next((each.topic for each in long if each.oldest_load_s > LOADED_LONG_S), "TOPIC")
        return Check(
            name,
            "attention",
            f"Topics wait long until they are loaded, and so do their clients: {_these(items)}.",
            "Run `daybook doctor` again: the numbers fall as long as the takeover advances. If they"
            f" do not, look at bookies and ZooKeeper; `daybook explain topic {quote(slow)}` says"
            " what a topic waits for.",
            items,
        )
    note = f"A note: topics are being loaded, or requests wait: {_these(items)}."
    if unseen:  # After the loss of a broker it is silent for a while, and others load its topics.
        rest = _unknown(name, unseen)
        words = f"{note} {rest.sentence}" if items else rest.sentence
        return replace(rest, sentence=words, items=[*items, *unseen])
    if items:
        return Check(name, "ok", note, "Wait; `daybook doctor` shows what is left.", items)
    return Check(name, "ok", "No broker is loading topics, and no client waits for its turn.")


def _takes_long(each: Activity) -> bool:
    return each.oldest_wait_s > WAITED_LONG_S or each.oldest_load_s > LOADED_LONG_S


def _busy(broker: str, each: Activity) -> str:
    """Return in words what a broker loads, and what waits there."""
    words = [f"{broker} is loading {counted(each.loading, 'topic')}"]
    if each.oldest_load_s > LOADED_LONG_S:
        words[0] += f" ({each.topic} for {each.oldest_load_s:,.0f} s: {each.step})"
    if each.waiting:
        wait = _count(each.waiting, "topic waits", "topics wait")
        words.append(f"{wait} for a place, the oldest for {each.oldest_wait_s:,.0f} s")
    if each.requests_waiting:
        wait = _count(each.requests_waiting, "request", "requests")
        words.append(f"{wait} of clients wait{'s' * (each.requests_waiting == 1)} for a turn")
    return ", ".join(words)


def check_waiting(answers: ClusterAnswers) -> Check:
    found = [
        f"{topic} waits for {stats['waitingFor']}"
        for topic, stats in sorted(answers.topics.items())
        if stats.get("waitingFor")
    ]
    return _of_topics(
        answers,
        "waiting topics",
        found,
        f"{counted(len(found), 'topic')} cannot store messages now: {_these(found)}.",
        f"Look at the bookies first; `daybook explain topic {_first(found)}` says more.",
        "No topic that was looked at waits to store messages.",
    )


def check_lists(answers: ClusterAnswers) -> Check:
    full, half = list[str](), list[str]()
    for topic, stats in sorted(answers.topics.items()):
        if stats.get("ledgerListFull"):
            full.append(f"{topic} ({stats['ledgerListFull']})")
        elif stats.get("ledgerListAlarm"):
            size, most = stats.get("ledgerListBytes", 0), stats.get("ledgerListBytesMax", 0)
            half.append(f"{topic} ({size:,} of {most:,} bytes)")
    found = [*full, *half]
    return _of_topics(
        answers,
        "lists of ledgers",
        found,
        f"{_count(len(found), 'topic has a list', 'topics have lists')} of ledgers that"
        f" {'is' if len(found) == 1 else 'are'} at least half full: {_these(found)}.",
        "Shorten the retention (`daybook topics retention`), or delete the subscriptions that keep"
        f" the messages (`daybook topics subscriptions list {_first(found)}`).",
        "No list of ledgers is half full.",
        verdict="failed" if full else "attention",
    )


def check_spark(answers: ClusterAnswers) -> Check:
    """Find subscriptions of Spark streams that hold a backlog and have not moved for long.

    A query that runs keeps its last micro-batch as a backlog, so a subscription with a consumer
    counts only if messages arrive.
    """
    found, untold = _Stale(), list[str]()
    for topic, name, stats, each in _behind(answers):
        if not is_of_spark(each) or (each.get("consumers") and not stats.get("msgRateIn")):
            continue
        moved = each.get("lastMovedTimestamp") or each.get("earliestMsgPublishTimeInBacklog")
        if not moved:
            untold.append(f"{name} of {topic}")
        elif _is_old(answers, moved):
            marks: Mapping[str, str] = each.get("subscriptionProperties", {})
            found.add(topic, name, each["msgBacklog"], moved, marks.get(PROPERTY_HOST, ""))
    items = found.items("not moved since")
    return _of_topics(
        answers,
        "Spark subscriptions",
        items,
        f"{_count(len(items), 'subscription', 'subscriptions')} of Spark streams"
        f" {'has' if len(items) == 1 else 'have'} a backlog and did not move for"
        f" {answers.stale_days:g} days: {_these(items)}.",
        "Start the query again (if it runs, its log says why it stands still), or, if it never runs"
        f" again, {found.deletion}.",
        "No subscription of a Spark stream that was looked at stands still.",
        untold=untold,
    )


def check_subscriptions(answers: ClusterAnswers) -> Check:
    """Find other subscriptions that nobody uses, whose oldest message is old."""
    found, untold = _Stale(), list[str]()
    for topic, name, _, each in _behind(answers):
        if is_of_spark(each) or each.get("consumers"):
            continue
        oldest = each.get("earliestMsgPublishTimeInBacklog")
        if not oldest:
            untold.append(f"{name} of {topic}")
        elif _is_old(answers, oldest):
            found.add(topic, name, each["msgBacklog"], oldest, "")
    items = found.items("the oldest of")
    return _of_topics(
        answers,
        "subscriptions",
        items,
        f"{_count(len(items), 'subscription', 'subscriptions')} without consumers"
        f" {'holds' if len(items) == 1 else 'hold'} messages older than {answers.stale_days:g}"
        f" days: {_these(items)}.",
        f"Start the consumers, or {found.deletion} (`daybook topics clear` keeps a subscription).",
        "No subscription that was looked at is left with old messages.",
        untold=untold,
    )


class _Stale:
    """Stale subscriptions; those of the partitions of one topic are one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[tuple[int, int, str]]] = {}

    def add(self, topic: str, name: str, messages: int, since_ms: int, host: str) -> None:
        key = TopicName.parse(topic).base.full, name
        self._found.setdefault(key, []).append((messages, since_ms, host))

    def items(self, since: str) -> list[str]:
        return [self._item(topic, name, since) for topic, name in self._found]

    def _item(self, topic: str, name: str, since: str) -> str:
        those = self._found[topic, name]
        host = next((each for _, _, each in those if each), "")
        words = [
            counted(sum(messages for messages, _, _ in those), "message"),
            f"{since} {as_time(min(at_ms for _, at_ms, _ in those))}",
            f"in {len(those)} partitions" if len(those) > 1 else "",
            f"of a query on {host}" if host else "",
        ]
        return f"{name} of {topic} ({', '.join(filter(None, words))})"

    @property
    def deletion(self) -> str:
        """The command that deletes the first one."""
        topic, name = next(iter(self._found), ("TOPIC", "NAME"))
        return f"`daybook topics subscriptions delete {quote(topic)} {quote(name)}`"


def is_of_spark(subscription: Stats) -> bool:
    """Return True if a stream of Spark created the subscription."""
    marks: Mapping[str, str] = subscription.get("subscriptionProperties", {})
    return PROPERTY_HOST in marks or PROPERTY_TOPICS in marks


def _behind(answers: ClusterAnswers) -> Iterator[tuple[str, str, Stats, Stats]]:
    """Yield the durable subscriptions with a backlog: topic, name, both statistics."""
    for topic, stats in sorted(answers.topics.items()):
        subscriptions: Mapping[str, Stats] = stats.get("subscriptions", {})
        for name, each in sorted(subscriptions.items()):
            if each.get("durable", True) and each.get("msgBacklog", 0) > 0:
                yield topic, name, stats, each


def _is_old(answers: ClusterAnswers, at_ms: int) -> bool:
    return answers.now_ms - at_ms >= answers.stale_days * _MS_PER_DAY


def _of_topics(
    answers: ClusterAnswers,
    name: str,
    found: Sequence[str],
    sentence: str,
    remedy: str,
    fine: str,
    *,
    verdict: Verdict = "attention",
    untold: Sequence[str] = (),
) -> Check:
    """Return a check of topics: what was found, else what is not known, else `fine`."""
    if found:
        return Check(name, verdict, sentence, remedy, found)
    unseen, known = answers.unseen_loaded, answers.topics
    unseen += [
        f"{topic}: {said.why}"
        for topic, said in answers.asked.items()
        if isinstance(said, Unknown) and topic not in known
    ]
    unseen += [f"since when {each} is behind" for each in untold]
    return _unknown(name, unseen) if unseen else Check(name, "ok", fine)


# -- notes


def check_coverage(answers: ClusterAnswers) -> Check:
    """Say which topics were looked at.  Topics that are not loaded are no reason to worry."""
    name, namespaces = "topics looked at", answers.namespaces
    if isinstance(namespaces, Unknown):
        return _unknown(name, [f"how many topics exist: {namespaces.why}"])
    unseen = [f"{each}: {n.why}" for each, n in namespaces.items() if isinstance(n, Unknown)]
    unseen += answers.unseen_loaded
    if answers.all_topics:
        unseen += [f"{t}: {s.why}" for t, s in answers.asked.items() if isinstance(s, Unknown)]
    if unseen:
        return _unknown(name, unseen)
    stored = [
        topic for n in namespaces.values() if not isinstance(n, Unknown) for topic in n.topics
    ]
    looked = answers.topics
    left = sum(topic not in looked for topic in stored)
    if not left:
        return Check(name, "ok", f"Every stored topic was looked at ({len(stored):,}).")
    return Check(
        name,
        "ok",
        f"{_count(left, 'topic was', 'topics were')} not looked at, of {len(stored):,}, because"
        " no broker has them in memory now.",
        "`daybook doctor --all-topics` loads and looks at them, too. `daybook explain topic` says"
        " what one of them is doing.",
    )


def check_retention(answers: ClusterAnswers) -> Check:
    """Name the namespaces that keep everything, as a note: somebody may want just that."""
    name, namespaces = "retention", answers.namespaces
    if isinstance(namespaces, Unknown):
        return _unknown(name, [namespaces.why])
    endless = [
        each
        for each, found in sorted(namespaces.items())
        if not isinstance(found, Unknown) and found.minutes < 0 and found.megabytes < 0
    ]
    unseen = [f"{each}: {n.why}" for each, n in namespaces.items() if isinstance(n, Unknown)]
    if unseen:
        return _unknown(name, unseen)
    if endless:
        return Check(
            name,
            "ok",
            f"A note: {_count(len(endless), 'namespace keeps', 'namespaces keep')} messages"
            f" forever: {_these(endless)}.",
            f"`daybook topics retention --namespace {endless[0]} --minutes N --megabytes N` changes"
            " that.",
            endless,
        )
    return Check(name, "ok", "Every namespace has a limit for what it retains.")


# -- words


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _lack(marked: int) -> str:
    return _count(marked, "ledger lacks", "ledgers lack")


def _first(items: Sequence[str]) -> str:
    """Return the name with which the first item begins, for a command."""
    return quote(items[0].split(" ")[0]) if items else "NAME"


def _unknown(name: str, unseen: Sequence[str]) -> Check:
    return Check(name, "unknown", f"Not everything is known: {_these(unseen)}.", _ASK_AGAIN, unseen)


def _these(items: Sequence[str]) -> str:
    """Return the first items in words, and how many more there are."""
    rest = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {rest:,} more" if rest > 0 else "")


def _because(reasons: Iterable[str]) -> str:
    text = "; ".join(dict.fromkeys(filter(None, reasons)))
    return f" ({text})" if text else ""


_CHECKS: Sequence[Callable[[ClusterAnswers], Check]] = (
    check_store,  # first, because other checks fail where it does
    check_brokers,
    check_versions,
    check_token_files,
    check_sessions,
    check_bookies,
    check_disks,
    check_recovery,
    check_sinks,
    check_loads,
    check_waiting,
    check_lists,
    check_spark,
    check_subscriptions,
    check_retention,
    check_coverage,
)
