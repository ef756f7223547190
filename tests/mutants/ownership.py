"""Rules of owning bundles, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_OWNERSHIP = "daybook.broker.protocol.ownership"
_STORMS = "storms:ownership"
_TESTS = "tests:tests/broker/control/test_ownership.py"

_INSTANCE = "tests:tests/broker/test_instance.py"

MUTANTS = [
    Mutant(
        id="M62",
        rule="a broker loses everything with its session -> keeps what it owned",
        module=_OWNERSHIP,
        name="OwnershipProtocol._drop_all",
        replacement=Edit("    self._held.clear()\n", "    pass\n"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O18",
        rule="a broker drops its topics with its session -> only reports that it is not the owner",
        module=_OWNERSHIP,
        name="OwnershipProtocol._drop_all",
        replacement=Edit(
            "            case BundleState.OWNED:\n                self._emit(DropTopics(bundle))\n",
            "            case BundleState.OWNED:\n                pass\n",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O11",
        rule="a record that may have been created is read -> it is ours",
        module=_OWNERSHIP,
        name="OwnershipProtocol.create_in_doubt",
        replacement=Edit("self._check(bundle)", "self._hold(bundle, BundleState.OWNED)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O12",
        rule="a record that may have been created is read -> it is not ours",
        module=_OWNERSHIP,
        name="OwnershipProtocol.create_in_doubt",
        replacement=Edit("self._check(bundle)", "self._forget(bundle, Answer.OTHERS)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O13",
        rule="only the answer to the latest request counts -> any answer does",
        module=_OWNERSHIP,
        name="OwnershipProtocol._state_at",
        replacement=Edit("held is not None and held.ask == ask", "held is not None"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O14",
        rule="a record is given up when its topics are closed -> at once",
        module=_OWNERSHIP,
        name="OwnershipProtocol._begin_release",
        replacement=Edit("self._emit(CloseTopics(bundle, ask))", "self._delete(bundle)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O15",
        rule="a vanished record takes its topics along -> they stay until the next request",
        module=_OWNERSHIP,
        name="OwnershipProtocol.record_read",
        replacement=Edit(
            "case BundleState.OWNED, RecordOwner.NOBODY | RecordOwner.OTHERS:", "case None, None:"
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O16",
        rule="a missing guard means that the broker owns nothing -> the guard is written again",
        module=_OWNERSHIP,
        name="OwnershipProtocol.guard_seen",
        replacement=Edit("        self._drop_all()\n", "        pass\n"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O17",
        rule="a deletion in doubt is looked up -> it was carried out",
        module=_OWNERSHIP,
        name="OwnershipProtocol.delete_in_doubt",
        replacement=Edit("self._check_deleted(bundle)", "self._let_go(bundle)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="O19",
        rule="leftovers of a join attempt in our session are removed -> stay forever",
        module="daybook.broker.ownership.membership",
        name="_clear_registration",
        replacement=Edit(
            "        if record is None:\n",
            "        if record is None or record.stat.owner == store.session_id:\n"
            "            await trio.sleep(_RETRY_S)\n",
        ),
        caught_by=f"{_TESTS} -k in_nobodys_way",
    ),
    Mutant(
        id="O21",
        rule="a registration of ours without a guard is removed -> blocks the join forever",
        module="daybook.broker.ownership.membership",
        name="_clear_registration",
        replacement=Edit(
            "if own_session and not await _guards(", "if False and not await _guards("
        ),
        caught_by=f"{_TESTS} -k by_hand",
    ),
    Mutant(
        id="O20",
        rule="a broker makes one join attempt at a time -> several, which undo each other",
        module="daybook.broker.ownership.registration",
        name="Registration.join",
        replacement=Edit("async with self._joining:", "if term:"),
        caught_by=f"{_TESTS} -k removes_nothing_of_the_next_one",
    ),
    Mutant(
        id="W05 instance",
        rule="a broker with the ledgers of another instance does not join -> it does",
        module="daybook.bookie.registry.instance",
        name="check_binding",
        replacement=Edit("if instance_id == bound.instance_id:", "if bound.instance_id:"),
        caught_by=_INSTANCE,
    ),
    Mutant(
        id="W06 unbound",
        rule="topics are bound only to ledgers that match their lists -> to any",
        module="daybook.managed_ledger.binding",
        name="bind",
        replacement=Edit("    if wrong:\n", "    if wrong and not wrong:\n"),
        caught_by=_INSTANCE,
    ),
    Mutant(
        id="W07 again",
        rule="a broker rejoins only while its instance is bound -> always",
        module="daybook.broker.ownership.membership",
        name="join",
        replacement=Edit("checks = [Check(PATH, bound.version)]", "pass"),
        caught_by=_INSTANCE,
    ),
    Mutant(
        id="W08 list",
        rule="a list that names another instance is not opened -> it is",
        module="daybook.managed_ledger.open",
        name="_check_instance",
        replacement=Edit("named != context.instance", "not named"),
        caught_by=_INSTANCE,
    ),
    Mutant(
        id="W09 beside",
        rule="a broker does not join beside one of another instance -> it does",
        module="daybook.broker.ownership.membership",
        name="check_others",
        replacement=Edit("guard.instance != bound.instance_id", "not guard.instance"),
        caught_by=_INSTANCE,
    ),
    Mutant(
        id="O22",
        rule="each step of a removal names the guard's version before it -> any version",
        module="daybook.broker.ownership.membership",
        name="remove",
        replacement=Edit("Set(path, value, stat.version)", "Set(path, value, ANY)"),
        caught_by=f"{_TESTS}::test_what_a_dead_broker_owned_is_removed_in_steps_if_one_request_is_too_small",
    ),
    Mutant(
        id="O23",
        rule="handing over a record changes the guard's version -> only checks that it exists",
        module="daybook.broker.ownership.owner_records",
        name="OwnerRecords.delete",
        replacement=Edit(
            "Set(guard.path, found.value, found.stat.version)", "Check(guard.path, ANY)"
        ),
        caught_by="tests:tests/broker/control/test_ownership.py -k removing",
    ),
    Mutant(
        id="JN01",
        rule="a broker that is removed again and again waits longer each time -> joins at once",
        module="daybook.broker.protocol.rejoining",
        name="RejoinPauses.removed",
        replacement=Edit("    return pause_s", "    return 0.0"),
        caught_by="tests:tests/broker/protocol/test_rejoining.py",
    ),
    Mutant(
        id="JN02",
        rule="the pause comes before the join -> the broker joins in it",
        module="daybook.broker.ownership.registration",
        name="Registration.note_removal",
        replacement=Edit("self._join_at_s = trio.current_time() + pause_s", "pass"),
        caught_by=f"{_TESTS} -k again_and_again",
    ),
    Mutant(
        id="JN03",
        rule="a certificate for another host is refused at the start -> it is not looked at",
        module="daybook.broker.own_certificate",
        name="_check",
        replacement=Edit("fault = rehearse(", "fault = None and rehearse("),
        caught_by="tests:tests/broker/test_own_certificate.py",
    ),
]
