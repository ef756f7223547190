"""Rules of readiness, of the watchdog, and of descriptors, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.watchdog"
_TESTS = "tests:tests/broker/protocol/test_watchdog.py"
_SHELL = "tests:tests/broker/test_watchdog.py"
_ACCEPT = "tests:tests/broker/control/test_accept.py"

MUTANTS = [
    Mutant(
        id="WD01",
        rule="time in which the process was stopped does not count for the watchdog -> it does",
        module=_MACHINE,
        name="WatchdogProtocol.ticked",
        replacement=Edit("late or starved", "starved"),
        caught_by=f"{_TESTS}::test_time_in_which_the_process_was_stopped_does_not_count",
    ),
    Mutant(
        id="WD02",
        rule="nor does time in which other processes had the processors -> it does",
        module=_MACHINE,
        name="WatchdogProtocol.ticked",
        replacement=Edit("late or starved", "late"),
        caught_by=f"{_TESTS}::test_time_in_which_others_had_the_processors_does_not_count",
    ),
    Mutant(
        id="WD03",
        rule="the only live registration is never ended -> it is",
        module=_MACHINE,
        name="WatchdogProtocol.others_serve",
        replacement=Edit(" and serve and ", " and "),
        caught_by=f"{_TESTS}::test_the_only_broker_that_is_known_to_live_is_never_ended",
    ),
    Mutant(
        id="WD04",
        rule="a broker is not ended while the state of the others is unknown -> it is",
        module=_MACHINE,
        name="WatchdogProtocol.others_serve",
        replacement=Edit(" and serve and ", " and serve is not False and "),
        caught_by=f"{_TESTS}::test_the_only_broker_that_is_known_to_live_is_never_ended",
    ),
    Mutant(
        id="WD05",
        rule="a process ends itself at most once in ten minutes -> more often",
        module=_MACHINE,
        name="WatchdogProtocol._may_end",
        replacement=Edit("now_s - self._started_s >= self.limits.quiet_s", "True"),
        caught_by=f"{_TESTS}::test_a_process_does_not_end_itself_in_its_first_ten_minutes",
    ),
    Mutant(
        id="WD06",
        rule="a probe that could not be sent proves nothing -> it counts as silence",
        module=_MACHINE,
        name="WatchdogProtocol.not_asked",
        replacement=Edit("self._restart(now_s)", "pass"),
        caught_by=f"{_TESTS}::test_a_probe_that_could_not_be_sent_says_nothing",
    ),
    Mutant(
        id="WD07",
        rule="another broker serves if the registered incarnation answers -> if any does",
        module="daybook.broker.ownership.peers",
        name="serves",
        replacement=Edit(
            "connected.server_version == server_version(member.record.incarnation)", "True"
        ),
        caught_by=f"{_SHELL}::test_the_only_broker_is_not_ended",
    ),
    Mutant(
        id="WD08",
        rule="a refusal for lack of room is not readiness -> it is",
        module="daybook.broker.ownership.peers",
        name="why_not_served",
        replacement=Edit(
            "refused.error in (pb.AuthenticationError, pb.AuthorizationError)", "refused.error"
        ),
        caught_by=f"{_ACCEPT}::test_what_counts_as_an_answer",
    ),
    Mutant(
        id="WD09",
        rule="ports leave descriptors for other uses -> they get all of them",
        module="daybook.wire.descriptors",
        name="share_out",
        replacement=Edit("limit - min(reserve, limit // _RESERVE_SHARE)", "limit"),
        caught_by="tests:tests/wire/test_descriptors.py",
    ),
    Mutant(
        id="WD10",
        rule="of several stuck brokers one ends at a time -> all of them do",
        module="daybook.broker.watchdog",
        name="Watchdog._do_others_serve",
        replacement=Edit("bool(silent) and self._broker_id < min(silent)", "bool(silent)"),
        caught_by=f"{_SHELL}::test_of_brokers_that_are_all_stuck_one_is_ended",
    ),
]
