"""Rules of balancing and of load reports, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.balance"
_REPORT = "daybook.broker.ownership.load_report"
_BALANCER = "daybook.broker.ownership.balancer"
_TESTS = "tests:tests/broker/protocol/test_balance.py"
_SHELLS = "tests:tests/broker/control/test_loads_and_drains.py"

MUTANTS = [
    Mutant(
        id="BA01",
        rule="a bundle moves only if that evens the loads -> any bundle of the fullest broker",
        module=_MACHINE,
        name="Balance._move",
        replacement=Edit("if load.weight < difference and bundle", "if bundle"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA02",
        rule="a bundle that moved stays for its cool-down -> it may move at once",
        module=_MACHINE,
        name="Balance._move",
        replacement=Edit(" and bundle not in self._moved", ""),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA03",
        rule="both brokers of a move rest -> they do not",
        module=_MACHINE,
        name="Balance._remember",
        replacement=Edit("for broker in (decision.source, decision.target):", "for broker in ():"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA04",
        rule="nothing moves when a broker has come or gone -> it does",
        module=_MACHINE,
        name="Balance.decide",
        replacement=Edit("if present != self._brokers:", "if False:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA05",
        rule="nothing moves after the store was away -> it does",
        module=_MACHINE,
        name="Balance.doubt",
        replacement=Edit("now_s + self.settings.quiet_s", "now_s"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA06",
        rule="a bundle that moved counts with its old load -> with what is measured",
        module=_MACHINE,
        name="Balance._with_moved",
        replacement=Edit("found.keys() & self._moved.keys()", "()"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA07",
        rule="a small share of the mean moves nothing -> it does",
        module=_MACHINE,
        name="Balance._move",
        replacement=Edit(
            "max(self.settings.threshold, mean * self.settings.threshold_percent / 100)",
            "self.settings.threshold",
        ),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA08",
        rule="a full namespace is not split -> it is",
        module=_MACHINE,
        name="Balance._hot",
        replacement=Edit(
            "if why and load.topics > 1 and room and", "if why and load.topics > 1 and"
        ),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BA09",
        rule="a report is written while our guard stands -> always",
        module=_REPORT,
        name="LoadReports._write",
        replacement=Edit("Check(guard.path, ANY), ", ""),
        caught_by=f"{_SHELLS} -k removed",
    ),
    Mutant(
        id="BA10",
        rule="a report that has not changed is not written -> it is",
        module=_REPORT,
        name="_differ",
        replacement=Edit("if old.bundles != new.bundles:", "if True:"),
        caught_by=f"{_SHELLS} -k when_it_has_changed",
    ),
    Mutant(
        id="BA11",
        rule="a dry run moves nothing -> it does",
        module=_BALANCER,
        name="Balancer._balance_once",
        replacement=Edit("if self._dry_run:", "if False:"),
        caught_by=f"{_SHELLS} -k decides",
    ),
    Mutant(
        id="BA12",
        rule="a broker drains itself only -> whoever is asked drains",
        module="daybook.broker.admin.broker_operations",
        name="BrokerOperations.drain",
        replacement=Edit("if broker_id != self._ownership.identity.broker_id:", "if False:"),
        caught_by=f"{_SHELLS} -k planned",
    ),
    Mutant(
        id="BA13",
        rule="a broker that is drained takes no bundle -> lookups place bundles there",
        module="daybook.broker.admin.broker_operations",
        name="BrokerOperations.drain",
        replacement=Edit("not await self._ownership.withdraw()", "False"),
        caught_by=f"{_SHELLS} -k planned",
    ),
    Mutant(
        id="BA20",
        rule="a bundle that cannot be split keeps no other from moving -> it is asked for again",
        module="daybook.broker.protocol.balance",
        name="Balance.failed",
        replacement=Edit("if decision.kind is Kind.SPLIT:", "if False:"),
        caught_by="tests:tests/broker/protocol/test_balance.py -k cannot_be_split",
    ),
    Mutant(
        id="BA21",
        rule="old fences are looked for when the table has doubled -> at each fence",
        module="daybook.broker.protocol.topics",
        name="TopicsProtocol._note_fence",
        replacement=Edit("if len(self._fenced) >= self._fenced_max:", "if True:"),
        caught_by="tests:tests/broker/protocol/test_topics_scenarios.py -k many_fences",
    ),
    Mutant(
        id="BA22",
        rule="a bundle that its receiver did not take is not handed over -> it counts as that",
        module="daybook.broker.ownership.hand_over",
        name="HandOvers._hand_over",
        replacement=Edit("if not given:", "if False:"),
        caught_by=f"{_SHELLS} -k did_not_confirm",
    ),
    Mutant(
        id="BA23",
        rule="a broker whose drain has not begun serves its topics -> it loads none",
        module="daybook.broker.ownership.registration",
        name="Registration.stay",
        replacement=Edit("self._withdrawn = False", "pass"),
        caught_by=f"{_SHELLS} -k has_not_begun",
    ),
    Mutant(
        id="BA24",
        rule="a broker that stays after all joins again -> a lost session keeps it out",
        module="daybook.broker.ownership.ownership",
        name="Ownership.stay",
        replacement=Edit("self._start(self._join, term)", "pass"),
        caught_by=f"{_SHELLS} -k joins_again",
    ),
]
