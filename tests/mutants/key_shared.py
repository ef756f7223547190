"""Rules of key_shared subscriptions, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.dispatch.key_shared"
_KEYS = "daybook.broker.protocol.dispatch.keys"
_RANGES = "daybook.broker.protocol.dispatch.ranges"
_ENTRIES = "daybook.broker.dispatch.entries"
_SUBSCRIPTION = "daybook.broker.dispatch.subscription"
_BATCHING = "daybook.clients.python.protocol.batching"
_STORMS = "storms:key_shared"
_BY_SCENARIO = "tests:tests/broker/protocol/test_key_shared.py"
_BY_RANGES = "tests:tests/broker/protocol/test_ranges.py"
_BY_COSTS = "tests:tests/broker/protocol/test_key_shared_costs.py"
_BY_BROKER = "tests:tests/broker/test_key_shared.py"
_BY_CLIENT = "tests:tests/clients/python/test_key_shared.py"

MUTANTS = [
    Mutant(
        id="KS01",
        rule="an entry waits behind earlier ones of its key -> it is delivered if it can be",
        module=_MACHINE,
        name="KeySharedDispatch._assign",
        replacement=Edit("elif not key.waits:", "else:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS02",
        rule="a key that moved drains -> its new consumer is served at once",
        module=_MACHINE,
        name="KeySharedDispatch._taker",
        replacement=Edit("(key.holder is not None and key.holder != owner)", "False"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS03",
        rule="an entry that came back during a read comes first -> the one that was read does",
        module=_MACHINE,
        name="KeySharedDispatch._replayed",
        replacement=Edit(" or key.first != place", " or key.first > place"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS04",
        rule="entries that come back go before those that wait -> behind them",
        module=_KEYS,
        name="Key.add",
        replacement=Edit("waiting.sort()", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS05",
        rule="a key stays until all chunks of a message are delivered -> it moves between chunks",
        module=_MACHINE,
        name="KeySharedDispatch._owner",
        replacement=Edit(
            "key.holder if key.begun else self._ranges.owner_of(key.hash)",
            "self._ranges.owner_of(key.hash)",
        ),
        caught_by=_BY_SCENARIO,
    ),
    Mutant(
        id="KS06",
        rule="a newcomer takes over keys that wait -> they wait for their old consumer",
        module=_MACHINE,
        name="KeySharedDispatch.joined",
        replacement=Edit("self._line_up_all(loser)", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS07",
        rule="a key is free when its holder has none of its entries -> it stays with its holder",
        module=_KEYS,
        name="Key.came_back",
        replacement=Edit("if not self.out or not (ordered or self.begun):", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS08",
        rule="entries that are acknowledged no longer wait -> they are still counted",
        module=_MACHINE,
        name="KeySharedDispatch._done",
        replacement=Edit("self._waiting -= 1", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS09",
        rule="entries that are due are delivered -> forgotten",
        module=_MACHINE,
        name="KeySharedDispatch._come_due",
        replacement=Edit("self._wait(place, key)", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS10",
        rule="a chunk waits for an earlier chunk that is delayed -> it is delivered before it",
        module=_MACHINE,
        name="KeySharedDispatch._assign",
        replacement=Edit("if entry.group is not None and (", "if False and ("),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS11",
        rule="as many entries wait as may -> more",
        module=_MACHINE,
        name="KeySharedDispatch._assign",
        replacement=Edit("elif self.look_ahead_full:", "elif False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS12",
        rule="a moved cursor starts anew -> what was known of entries stays",
        module=_MACHINE,
        name="KeySharedDispatch._clear",
        replacement=Edit("self._key_of.clear()", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS13",
        rule="keys that wait are delivered when their consumer has permits -> when others come",
        module=_MACHINE,
        name="KeySharedDispatch._count",
        replacement=Edit("self._note_ready(consumer.key)", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS14",
        rule="out of order, a key that moved does not drain -> it does",
        module=_MACHINE,
        name="KeySharedDispatch._hand",
        replacement=Edit("ordered=self._ordered", "ordered=True"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS15",
        rule="a sticky range has its last slot -> it ends before it",
        module=_RANGES,
        name="StickyRanges.owner_of",
        replacement=Edit("< slot:", "<= slot:"),
        caught_by=_BY_RANGES,
    ),
    Mutant(
        id="KS16",
        rule="the keys of a consumer that left go to others -> they wait for it",
        module=_MACHINE,
        name="KeySharedDispatch.left",
        replacement=Edit("    self._line_up_all(consumer)\n", ""),
        caught_by=_STORMS,
    ),
    Mutant(
        id="KS17",
        rule="an entry that is acknowledged before its replay is forgotten -> asked for forever",
        module=_MACHINE,
        name="KeySharedDispatch._replayed",
        replacement=Edit(
            "[p for p in places if p not in found and not self._unacked.is_held(p)]", "[]"
        ),
        caught_by="tests:tests/broker/protocol/test_key_shared.py -k is_gone",
    ),
    Mutant(
        id="KS18",
        rule="a key that moved back to its holder goes on -> it drains first",
        module=_MACHINE,
        name="KeySharedDispatch._line_up_all",
        replacement=Edit(", *self._draining[owner].values()]", "]"),
        caught_by=_BY_SCENARIO,
    ),
    Mutant(
        id="KS30",
        rule="reading stops when too many entries wait -> it goes on, and asks again and again",
        module=_MACHINE,
        name="KeySharedDispatch.want",
        replacement=Edit("if self.look_ahead_full:", "if False:"),
        caught_by=_BY_SCENARIO,
    ),
    Mutant(
        id="KS19",
        rule="consumers take turns with what waits -> the first one is always served first",
        module=_MACHINE,
        name="KeySharedDispatch._replayed",
        replacement=Edit("if consumer.key in self._ready:", "if False:"),
        caught_by=_BY_SCENARIO,
    ),
    Mutant(
        id="KS20",
        rule="the keys of a consumer take turns -> the first one is always served first",
        module=_MACHINE,
        name="KeySharedDispatch._replayed",
        replacement=Edit("self._leave_line(key)", "pass"),
        caught_by=_BY_SCENARIO,
    ),
    Mutant(
        id="KS21",
        rule="slot 0 is not used -> it is",
        module=_RANGES,
        name="AutoSplitRanges.slot_of",
        replacement=Edit("key % SLOTS or 1", "key % SLOTS"),
        caught_by=_BY_RANGES,
    ),
    Mutant(
        id="KS22",
        rule="the top range goes to its lower neighbour -> nobody has it",
        module=_RANGES,
        name="AutoSplitRanges.remove",
        replacement=Edit("if end == _TOP and len(self._ends) > 1:", "if False:"),
        caught_by=_BY_RANGES,
    ),
    Mutant(
        id="KS23",
        rule="consumers of one name have points of their own -> the same",
        module=_RANGES,
        name="RingRanges._number",
        replacement=Edit("numbers.next += 1", "numbers.next = 1"),
        caught_by=_BY_RANGES,
    ),
    Mutant(
        id="KS24",
        rule="sticky ranges do not overlap -> they may share their ends",
        module=_RANGES,
        name="StickyRanges._overlapping",
        replacement=Edit("[1] >= first:", "[1] > first:"),
        caught_by=_BY_RANGES,
    ),
    Mutant(
        id="KS32",
        rule="a sticky consumer names a bounded number of ranges -> as many as fit into a frame",
        module=_RANGES,
        name="ranges_problem",
        replacement=Edit("if len(ranges) > RANGES_MAX:", "if False:"),
        caught_by=_BY_RANGES,
    ),
    Mutant(
        id="KS25",
        rule="the ordering key decides -> the key does",
        module=_ENTRIES,
        name="sticky_key",
        replacement=Edit('metadata.HasField("ordering_key")', "False"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="KS31",
        rule="a key of megabytes is shortened before it is hashed -> hashed in Python",
        module=_ENTRIES,
        name="key_hash",
        replacement=Edit("key if len(key) <= _KEY_BYTES_MAX else blake2b(key).digest()", "key"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="KS26",
        rule="the policy of the first consumer holds -> each newcomer is let in",
        module=_MACHINE,
        name="KeyPolicy.agrees",
        replacement=Edit(
            "(self.sticky, self.out_of_order) == (other.sticky, other.out_of_order)", "True"
        ),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="KS27",
        rule="an acknowledgement of key_shared messages is not cumulative -> it may be",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements._add_cumulative",
        replacement=Edit(
            "if self._dispatcher.shared:",
            "if self._dispatcher.shared and not self._dispatcher.keyed:",
        ),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="KS28",
        rule="a dead consumer makes way for a sticky newcomer -> the newcomer is refused",
        module=_SUBSCRIPTION,
        name="Subscription._in_the_way",
        replacement=Edit(
            "return [self.consumers[key] for key in dispatch.in_the_way(keys.ranges)]", "return []"
        ),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="KS29",
        rule="batches by key are numbered when they leave -> as their messages came",
        module=_BATCHING,
        name="KeyedBatches.take",
        replacement=Edit("batch.sequence_id, first = first, first + batch.count", "pass"),
        caught_by=_BY_CLIENT,
    ),
    Mutant(
        id="KS41",
        rule="lengths of ranges that have changed are forgotten -> they are kept",
        module=_RANGES,
        name="_OUTDATED_MAX",
        replacement=1 << 60,
        caught_by=f"{_BY_RANGES} -k leaves_nothing",
    ),
]
