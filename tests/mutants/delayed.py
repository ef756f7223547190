"""Rules of delayed delivery, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_DELAYED = "daybook.broker.protocol.dispatch.delayed"
_SHARED = "daybook.broker.protocol.dispatch.shared"
_BY = "tests:tests/broker/protocol/test_delayed.py"

MUTANTS = [
    Mutant(
        id="DD01",
        rule="the index knows a bounded number of entries one by one -> all of them",
        module=_DELAYED,
        name="Delayed.add",
        replacement=Edit("self.indexed >= self._entries_max", "False"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD02",
        rule="the latest bucket joins the far part when there is no room -> it is forgotten",
        module=_DELAYED,
        name="Delayed._seal",
        replacement=Edit("self._far.note(self._unpack(packed))", "pass"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD03",
        rule="the far part begins at the bucket that joined it -> behind it",
        module=_DELAYED,
        name="Delayed._seal",
        replacement=Edit("max(latest[0], start_ms)", "max(latest[0], start_ms) + (1 << latest[1])"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD04",
        rule="a bucket of one step without room in the heap waits for its end -> it is not opened",
        module=_DELAYED,
        name="Delayed._open",
        replacement=Edit("heappush(self._order, (end_ms, start_ms, bits))", "pass"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD05",
        rule="what is opened before its time waits on -> it is due",
        module=_DELAYED,
        name="Delayed._open",
        replacement=Edit("if at_ms <= now_ms:", "if True:"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD06",
        rule="the far part is read at its time if the index has later ones only -> with room",
        module=_DELAYED,
        name="Delayed._is_soon",
        replacement=Edit(
            "return self._index_ms <= max(at_ms, self._now_ms) + (1 << self._step_bits)",
            "return True",
        ),
        caught_by=_BY,
    ),
    Mutant(
        id="DD08",
        rule="an entry of the far part waits for its time after it is read -> it is forgotten",
        module=_SHARED,
        name="SharedDispatch._delayed_again",
        replacement=Edit("if entry.deliver_at_ms:", "if False:"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD09",
        rule="entries that come due while the far part is read are delivered -> forgotten",
        module=_SHARED,
        name="SharedDispatch._delayed_again",
        replacement=Edit("for entry in found if not entry.deliver_at_ms]", "for entry in ()]"),
        caught_by="storms:dispatch",
    ),
    Mutant(
        id="DD10",
        rule="what is new has its turn while the far part is read -> it waits",
        module=_SHARED,
        name="SharedDispatch._delayed_again",
        replacement=Edit("self._new_has_turn = True", "pass"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD11",
        rule="a read at the end of the log does not hold up the far part -> it waits for more",
        module=_SHARED,
        name="SharedDispatch.want",
        replacement=Edit("waits=not self._delayed.asks", "waits=True"),
        caught_by=_BY,
    ),
    Mutant(
        id="DD12",
        rule="chunks never join the far part: they may wait for another chunk's time -> they do",
        module=_DELAYED,
        name="Delayed.add",
        replacement=Edit("if pinned or (", "if ("),
        caught_by=f"{_BY} -k chunks",
    ),
    Mutant(
        id="DD13",
        rule="chunks stay in the index while the far part is read -> they are added again",
        module=_SHARED,
        name="SharedDispatch._delayed_again",
        replacement=Edit("each.group is None and ", ""),
        caught_by=f"{_BY} -k not_delayed_again_with",
    ),
    Mutant(
        id="DD14",
        rule="limits of rates are not for the far part -> they are",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._read_bytes",
        replacement=Edit(" or not limited", ""),
        caught_by="tests:tests/broker/test_delayed_delivery.py -k limit_of_bytes",
    ),
    Mutant(
        id="DD90",
        rule="the earliest entry of a bucket is remembered until it leaves -> for ever",
        module="daybook.broker.protocol.dispatch.delayed",
        name="_Bucket.pop",
        replacement=Edit("self._first = None", "pass"),
        caught_by="tests:tests/broker/protocol/test_delayed.py -k knows_its_first",
    ),
    Mutant(
        id="DD91",
        rule="only buckets that may have the next entry are looked at -> all",
        module="daybook.broker.protocol.dispatch.delayed",
        name="Delayed._first_in_buckets",
        replacement=Edit("break", "pass"),
        caught_by="tests:tests/broker/protocol/test_delayed.py -k few_buckets",
    ),
]
