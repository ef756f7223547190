"""Rules of owning bundles, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_OWNERSHIP = "broker.protocol.ownership"
_STORMS = "storms:ownership"
_TESTS = "tests:tests/broker/control/test_ownership.py"

MUTANTS = [
    Mutant(
        id="M62",
        rule="with its session a broker loses everything -> it keeps what it owned",
        module=_OWNERSHIP,
        name="OwnershipProtocol._drop_all",
        replacement=Edit("    self._held.clear()\n", "    pass\n"),
        source_hash="b62753a3e88c",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O18",
        rule="with its session a broker drops its topics -> it says only that they are not its own",
        module=_OWNERSHIP,
        name="OwnershipProtocol._drop_all",
        replacement=Edit(
            "            case Holding.OWNED:\n                self._emit(DropTopics(bundle))\n",
            "            case Holding.OWNED:\n                pass\n",
        ),
        source_hash="b62753a3e88c",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O11",
        rule="a record that may have been created is read -> it is ours",
        module=_OWNERSHIP,
        name="OwnershipProtocol._answered",
        replacement=Edit("self._check(bundle)", "self._hold(bundle, Holding.OWNED)"),
        source_hash="cd4786341e57",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O12",
        rule="a record that may have been created is read -> it is not ours",
        module=_OWNERSHIP,
        name="OwnershipProtocol._answered",
        replacement=Edit("self._check(bundle)", "self._forget(bundle, Answer.OTHERS)"),
        source_hash="cd4786341e57",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O13",
        rule="answers to anything but the latest request are void -> they count",
        module=_OWNERSHIP,
        name="OwnershipProtocol.step",
        replacement=Edit("held is not None and held.ask == event.ask", "held is not None"),
        source_hash="7cf9b6c20340",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O14",
        rule="a record is given up when its topics are closed -> at once",
        module=_OWNERSHIP,
        name="OwnershipProtocol._release",
        replacement=Edit(
            "self._emit(CloseTopics(bundle, self._hold(bundle, Holding.CLOSING)))",
            "self._delete(bundle)",
        ),
        source_hash="066c73b315d8",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O15",
        rule="a record that vanished takes its topics along -> they stay until somebody asks",
        module=_OWNERSHIP,
        name="OwnershipProtocol._record_read",
        replacement=Edit("case Holding.OWNED, Owner.NOBODY | Owner.OTHERS:", "case None, None:"),
        source_hash="78b90b4385df",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O16",
        rule="a guard that is gone means that nothing is ours -> it is written again",
        module=_OWNERSHIP,
        name="OwnershipProtocol._guard_seen",
        replacement=Edit("        self._drop_all()\n", "        pass\n"),
        source_hash="cd965d134c55",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O17",
        rule="a deletion in doubt is looked up -> it was carried out",
        module=_OWNERSHIP,
        name="OwnershipProtocol._answered",
        replacement=Edit("self._check_deleted(bundle)", "self._let_go(bundle)"),
        source_hash="cd4786341e57",
        caught_by=_STORMS,
    ),
    Mutant(
        id="O19",
        rule="what an attempt to join left in our session is removed -> it stays for ever",
        module="broker.membership",
        name="_clear_registration",
        replacement=Edit(
            "        if record is None:\n",
            "        if record is None or record.stat.owner == store.session_id:\n"
            "            await trio.sleep(_RETRY_S)\n",
        ),
        source_hash="1a0e76bfd8f2",
        caught_by=f"{_TESTS} -k in_nobodys_way",
    ),
    Mutant(
        id="O21",
        rule="a registration of ours without a guard is removed -> it is in the way for ever",
        module="broker.membership",
        name="_clear_registration",
        replacement=Edit("if overtaken and not await _guards(", "if False and not await _guards("),
        source_hash="1a0e76bfd8f2",
        caught_by=f"{_TESTS} -k by_hand",
    ),
    Mutant(
        id="O20",
        rule="a broker makes one attempt to join at a time -> several, which remove each other's",
        module="broker.ownership",
        name="Ownership._join",
        replacement=Edit("async with self._joining:", "if term:"),
        source_hash="6e253b1cdd73",
        caught_by=f"{_TESTS} -k removes_nothing_of_the_next_one",
    ),
]
