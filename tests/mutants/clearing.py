"""Rules of what an administrator does to backlogs, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_CLEARING = "daybook.broker.dispatch.clearing"
_CURSOR = "daybook.managed_ledger.cursor"
_TESTS = "tests:tests/broker/control/test_subscription_admin.py"

MUTANTS = [
    Mutant(
        id="SA01",
        rule="messages of a batch are skipped one by one -> the batch is left whole",
        module=_CLEARING,
        name="plan_skip",
        replacement=Edit("if left != pending:", "if False:"),
        caught_by=f"{_TESTS}::test_messages_are_skipped_one_by_one_even_inside_a_batch",
    ),
    Mutant(
        id="SA02",
        rule="a dry run changes nothing -> it acknowledges",
        module=_CLEARING,
        name="carry_out",
        replacement=Edit("if dry_run:", "if False:"),
        caught_by=f"{_TESTS}::test_messages_are_skipped_one_by_one_even_inside_a_batch",
    ),
    Mutant(
        id="SA03",
        rule="messages of the age and younger ones do not expire -> one more does",
        module=_CLEARING,
        name="plan_expire",
        replacement=Edit("log.previous_position(young)", "young"),
        caught_by=f"{_TESTS}::test_old_messages_expire_and_newer_ones_stay",
    ),
    Mutant(
        id="SA05",
        rule="a message expires by when it was stored -> by when its producer says",
        module=_CLEARING,
        name="plan_expire",
        replacement=Edit(
            "await logs.first_stored_since(log, young, before_ms)",
            "await logs.position_of_time(log, before_ms)",
        ),
        caught_by=f"{_TESTS} -k own_age",
    ),
    Mutant(
        id="SA04",
        rule="properties of a subscription are stored -> they are kept in memory only",
        module=_CURSOR,
        name="Cursor._set_labels",
        replacement=Edit("await self._record.store(info)", "pass"),
        caught_by=f"{_TESTS}::test_properties_of_a_subscription_survive_the_unload_of_its_topic",
    ),
    Mutant(
        id="SA21",
        rule="a skip does not cross a move -> it skips up to the old position",
        module=_CLEARING,
        name="plan_skip",
        replacement=Edit("if subscription.moved != moved:", "if False:"),
        caught_by="tests:tests/broker/test_subscriptions.py -k cross_a_move",
    ),
]
