"""Rules of the properties of topics, broken one at a time (`broker.topics.topic_properties`)."""

from tests.mutants.patch import Edit, Mutant

_NAMES = "daybook.broker.topics.topic_properties"
_REST = "daybook.broker.admin.topic_properties"
_FACTORY = "daybook.broker.topics.managed_ledger_factory"
_BY_REST = "tests:tests/broker/control/test_topic_properties.py"

MUTANTS = [
    Mutant(
        id="P130",
        rule="names that brokers use are refused -> they can be set",
        module=_NAMES,
        name="check_names",
        replacement=Edit("if is_reserved(name):", "if False:"),
        caught_by=_BY_REST,
    ),
    Mutant(
        id="P130 kept",
        rule="a change keeps the properties of brokers -> it drops them",
        module=_FACTORY,
        name="ManagedLedgerFactory.change_properties",
        replacement=Edit("if is_reserved(name)}", "if False}"),
        caught_by=_BY_REST,
    ),
    Mutant(
        id="P130 limit",
        rule="what a topic has counts for the limit -> only what is added",
        module=_REST,
        name="_change",
        replacement=Edit('check_properties(f"topic {call.topic}", new)', "pass"),
        caught_by=_BY_REST,
    ),
]
