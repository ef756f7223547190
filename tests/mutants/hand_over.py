"""Rules of planned hand-overs and of splits, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.ownership"
_SHELL = "daybook.broker.ownership.ownership"
_RECORDS = "daybook.broker.ownership.owner_records"
_EXPECTED = "daybook.broker.ownership.expected"
_LEAVING = "daybook.broker.ownership.leaving"
_LOOKUP = "daybook.broker.service.lookup"
_BUNDLES = "daybook.broker.protocol.bundles"
_MACHINE_HAND_OVER = "daybook.broker.protocol.hand_over"
_PASSING = "tests:tests/broker/control/test_passing_topics_on.py"
_SCENARIOS = "tests:tests/broker/control/test_ownership_scenarios.py"
_TESTS = "tests:tests/broker/control/test_hand_overs.py"
_HAND_OVERS = "daybook.broker.ownership.hand_over"
_DRAINS = "tests:tests/broker/control/test_loads_and_drains.py"
_NOTICED = "tests:tests/broker/control/test_records_that_nobody_knows.py"

MUTANTS = [
    Mutant(
        id="HV01",
        rule="a record is given when the topics are closed -> at once",
        module=_MACHINE,
        name="OwnershipProtocol._begin_release",
        replacement=Edit(
            "self._emit(CloseTopics(bundle, ask))",
            "self._emit(GiveRecord(bundle, ask) if given else CloseTopics(bundle, ask))",
        ),
        caught_by=_SCENARIOS,
    ),
    Mutant(
        id="HV02",
        rule="a record that was not taken is deleted -> it counts as taken",
        module=_SHELL,
        name="Ownership._give",
        replacement=Edit(
            "self._protocol.delete_in_doubt(bundle, ask)", "self._protocol.deleted(bundle, ask)"
        ),
        caught_by=f"{_TESTS} -k not_taken",
    ),
    Mutant(
        id="HV03",
        rule="a ticket fits one record -> any record of that broker",
        module=_RECORDS,
        name="_fits",
        replacement=Edit("theirs and record.stat.created_txid == ticket.created_txid", "theirs"),
        caught_by=f"{_TESTS} -k ticket",
    ),
    Mutant(
        id="HV04",
        rule="a taking gives the giver's guard another version -> it only checks the guard",
        module=_RECORDS,
        name="OwnerRecords.take",
        replacement=Edit(
            "Set(ticket.guard, guard.value, guard.stat.version)",
            "Check(ticket.guard, guard.stat.version)",
        ),
        caught_by=f"{_TESTS} -k remover",
    ),
    Mutant(
        id="HV05",
        rule="only an expected bundle is taken -> any bundle",
        module=_SHELL,
        name="Ownership.take",
        replacement=Edit(
            "self._registration.withdrawn or bundle not in self._expected",
            "self._registration.withdrawn",
        ),
        caught_by=f"{_TESTS} -k only_an_expected",
    ),
    Mutant(
        id="HV06",
        rule="a taking that meets another one is tried again -> it fails",
        module=_RECORDS,
        name="OwnerRecords.take",
        replacement=Edit("continue", "break"),
        caught_by=f"{_TESTS} -k several",
    ),
    Mutant(
        id="HV07",
        rule="the owner names its successor in lookups -> it says that it has no owner",
        module=_LOOKUP,
        name="Lookups.lookup_bundle",
        replacement=Edit("if successor is not None:", "if False:"),
        caught_by=f"{_TESTS} -k lookups_name",
    ),
    Mutant(
        id="HV08",
        rule="the next owner answers lookups from the beginning -> when it is the owner",
        module=_LOOKUP,
        name="Lookups.lookup_bundle",
        replacement=Edit(" or self._ownership.expects(bundle)", ""),
        caught_by=f"{_TESTS} -k before_the_owner_begins",
    ),
    Mutant(
        id="HV09",
        rule="the record names the successor -> other brokers send clients to the old owner",
        module=_RECORDS,
        name="OwnerRecords.name_successor",
        replacement=Edit("named.disabled, named.successor = True, successor", "pass"),
        caught_by=f"{_TESTS} -k lookups_name",
    ),
    Mutant(
        id="HV10",
        rule="a broker that expects a bundle acquires it when its record goes -> it waits",
        module=_EXPECTED,
        name="ExpectedBundles._follow",
        replacement=Edit("await self._acquire(bundle)", "Answer.UNAVAILABLE"),
        caught_by=f"{_TESTS} -k owner_dies",
    ),
    Mutant(
        id="HV11",
        rule="a bundle is acquired if it exists at that moment -> if it existed before",
        module=_RECORDS,
        name="OwnerRecords.create",
        replacement=Edit(
            "Check(records.local_policies_path(namespace), version)",
            "Check(records.local_policies_path(namespace), ANY)",
        ),
        caught_by=f"{_TESTS} -k was_split",
    ),
    Mutant(
        id="HV12",
        rule="the parts are in force with the answer of a split -> when the watch fires",
        module=_RECORDS,
        name="OwnerRecords.split",
        replacement=Edit("self._policies.bundles_changed(namespace, new)", "pass"),
        caught_by=f"{_TESTS} -k every_turn",
    ),
    Mutant(
        id="HV13",
        rule="a split keeps Pulsar's other fields -> it drops them",
        module=_RECORDS,
        name="OwnerRecords.split",
        replacement=Edit(
            "records.encode(fields)", 'records.encode({"bundles": fields["bundles"]})'
        ),
        caught_by=f"{_TESTS} -k pulsar",
    ),
    Mutant(
        id="HV14",
        rule="a split that meets another one is tried again -> it fails",
        module=_RECORDS,
        name="OwnerRecords.split",
        replacement=Edit("continue", "break"),
        caught_by=f"{_TESTS} -k two_bundles",
    ),
    Mutant(
        id="HV15",
        rule="the records of parts are watched -> they are not",
        module=_MACHINE,
        name="OwnershipProtocol.split_done",
        replacement=Edit("self._read(part,", "self._hold(part,"),
        caught_by=_SCENARIOS,
    ),
    Mutant(
        id="HV16",
        rule="a bundle whose split failed is read -> it is taken for owned",
        module=_MACHINE,
        name="OwnershipProtocol.split_failed",
        replacement=Edit("if self.contact:", "if False:"),
        caught_by=_SCENARIOS,
    ),
    Mutant(
        id="HV17",
        rule="the last bundle includes its end -> it does not",
        module=_BUNDLES,
        name="contains",
        replacement=Edit(" or hash_ == high == HASH_MAX", ""),
        caught_by=f"{_TESTS} -k includes",
    ),
    Mutant(
        id="HV18",
        rule="an owner deletes no record that was taken from it -> it deletes whatever is there",
        module=_RECORDS,
        name="OwnerRecords.delete",
        replacement=Edit(
            "found is None or record is None or not self._is_ours(record)",
            "found is None or record is None",
        ),
        caught_by=f"{_TESTS} -k leaves_the_record",
    ),
    Mutant(
        id="HV19",
        rule="the next owner knows the bundles of the namespace -> it never read them",
        module="daybook.broker.admin.bundle_operations",
        name="BundleOperations.expect",
        replacement=Edit("await self._policies.bundles(namespace_of(bundle))", "pass"),
        caught_by="tests:tests/simulation/test_scenarios.py -k silent",
    ),
    Mutant(
        id="HV33",
        rule="a ticket from the network names a guard -> any path",
        module=_RECORDS,
        name="check_guard",
        replacement=Edit("parent != records.GUARDS", "False"),
        caught_by=f"{_TESTS} -k names_no_guard",
    ),
    Mutant(
        id="HV20",
        rule="a record of ours that nobody knows of is noticed -> only at a lookup here",
        module=_SHELL,
        name="Ownership._notice",
        replacement=Edit("await self.acquire(bundle)", "pass"),
        caught_by=f"{_NOTICED} -k late",
    ),
    Mutant(
        id="HV21",
        rule="the bundle of a client's topic is the present one -> the one before the split",
        module=_SHELL,
        name="Ownership.wait_handed_over",
        replacement=Edit(
            "await self._notice(await self._policies.bundle_of(topic))",
            "await self._notice(bundle) if bundle is not None else None",
        ),
        caught_by=f"{_NOTICED} -k split",
    ),
    Mutant(
        id="HV22",
        rule="a client's question acquires nothing -> it acquires what nobody owns",
        module=_SHELL,
        name="Ownership._notice",
        replacement=Edit("await self._owner_records.names_us(bundle)", "True"),
        caught_by=f"{_NOTICED} -k stays_there",
    ),
    Mutant(
        id="HV23",
        rule="one read is for all that ask at once -> each reads",
        module=_SHELL,
        name="Ownership._notice",
        replacement=Edit("noticing is not None", "False"),
        caught_by=f"{_NOTICED} -k one_read",
    ),
    Mutant(
        id="HV24",
        rule="clients of topics that store nothing wait for the owner, too -> they do not",
        module="daybook.broker.topics.topics",
        name="Topics.open",
        replacement=Edit("await self._wait_ours(name)", "pass"),
        caught_by=f"{_NOTICED} -k both_kinds",
    ),
    Mutant(
        id="HV25",
        rule="the next owner loads topics when they are closed -> all of them at once",
        module=_MACHINE_HAND_OVER,
        name="Held.may_load",
        replacement=Edit(" and hash_ not in self._hashes", ""),
        caught_by=f"{_PASSING} -k before_the_bundle",
    ),
    Mutant(
        id="HV26",
        rule="topics are passed on with the ticket of the record -> with any ticket",
        module=_RECORDS,
        name="_fits",
        replacement=Edit(
            "theirs and record.stat.created_txid == ticket.created_txid", "theirs or True"
        ),
        caught_by=f"{_PASSING} -k ticket",
    ),
    Mutant(
        id="HV27",
        rule="topics are dropped if the bundle does not come -> they are served on",
        module=_EXPECTED,
        name="ExpectedBundles._end",
        replacement=Edit("self._drop(bundle)", "pass"),
        caught_by=f"{_PASSING} -k dropped",
    ),
    Mutant(
        id="HV28",
        rule="the owner answers for topics that it still serves -> their clients wait elsewhere",
        module=_LOOKUP,
        name="Lookups.lookup",
        replacement=Edit("if self._ownership.keeps(topic):", "if False:"),
        caught_by=f"{_PASSING} -k still_serves",
    ),
    Mutant(
        id="HV29",
        rule="an expectation lasts while topics are passed on -> it ends after its first time",
        module=_EXPECTED,
        name="ExpectedBundle._heard",
        replacement=Edit("self.scope.deadline = trio.current_time() + _EXPECT_S", "pass"),
        caught_by=f"{_PASSING} -k lasts",
    ),
    Mutant(
        id="HV30",
        rule="slow groups become smaller -> they stay as they are",
        module=_MACHINE_HAND_OVER,
        name="PassedOn.took",
        replacement=Edit("max(1.0, min(fitting,", "max(self._size, min(fitting,"),
        caught_by="tests:tests/broker/protocol/test_hand_over.py",
    ),
    Mutant(
        id="HV31",
        rule="after an error the rest is closed with the bundle -> the next owner is asked again",
        module=_LEAVING,
        name="LeavingBundle._pass_on_groups",
        replacement=Edit("failed = True", "pass"),
        caught_by=f"{_PASSING} -k broken_off",
    ),
    Mutant(
        id="HV32",
        rule="a broker that stops loads nothing for others -> it does",
        module=_SHELL,
        name="Ownership.may_load",
        replacement=Edit("self._registration.withdrawn or bundle is None", "bundle is None"),
        caught_by=f"{_PASSING} -k stops",
    ),
    Mutant(
        id="HV34",
        rule="an expectation ends when a third broker was faster -> it goes on",
        module=_EXPECTED,
        name="ExpectedBundles._follow",
        replacement=Edit("answer is Answer.OTHERS", "False"),
        caught_by=f"{_TESTS} -k third_broker",
    ),
    Mutant(
        id="HV35",
        rule="an expectation ends when a third broker has the record -> it goes on",
        module=_EXPECTED,
        name="ExpectedBundles._follow",
        replacement=Edit("giver is not None and record.stat.owner != giver", "False"),
        caught_by=f"{_TESTS} -k third_broker",
    ),
    Mutant(
        id="HV36",
        rule="an expectation lasts while one slow topic is closed -> for half of that time",
        module=_EXPECTED,
        name="ExpectedBundle._heard",
        replacement=Edit("_EXPECT_S", "_EXPECT_S / 2"),
        caught_by=f"{_PASSING} -k slow_topic",
    ),
    Mutant(
        id="HV37",
        rule="the successor answers for topics that are closed with the bundle -> the owner",
        module=_LEAVING,
        name="LeavingBundle.pass_on",
        replacement=Edit("self._passed_on.take_all()", "pass"),
        caught_by=f"{_PASSING} -k closed_with_the_bundle",
    ),
    Mutant(
        id="HV38",
        rule="topics that store nothing are closed before the first group -> with the bundle",
        module=_LEAVING,
        name="LeavingBundle.pass_on",
        replacement=Edit(
            "self._topics.non_persistent.close_bundle(self.bundle, self.urls)", "pass"
        ),
        caught_by=f"{_PASSING} -k store_nothing",
    ),
    Mutant(
        id="HV39",
        rule="a receiver whose answer was lost is told -> it expects the bundle on",
        module=_HAND_OVERS,
        name="HandOvers._hand_over",
        replacement=Edit("await self._keep(bundle, url)", "pass"),
        caught_by=f"{_DRAINS} -k answer_is_lost",
    ),
    Mutant(
        id="HV40",
        rule="a drain asks a receiver that failed no more -> for every bundle",
        module=_HAND_OVERS,
        name="HandOvers.drain",
        replacement=Edit("failed.add(member.broker_id)", "pass"),
        caught_by=f"{_DRAINS} -k failed_once",
    ),
    Mutant(
        id="HV41",
        rule="a bundle that cannot be handed over is released -> it stays until the session ends",
        module=_HAND_OVERS,
        name="HandOvers.drain",
        replacement=Edit("await self._ownership.release(bundle)", "pass"),
        caught_by=f"{_DRAINS} -k failed_once",
    ),
    Mutant(
        id="HV42",
        rule="an owner that lost the bundle passes no more topics on -> it goes on after a join",
        module=_LEAVING,
        name="LeavingBundle.give_up",
        replacement=Edit("self._given_up = True", "pass"),
        caught_by=f"{_PASSING} -k lost_the_bundle",
    ),
]
