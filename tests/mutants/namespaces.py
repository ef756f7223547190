"""Rules of the deletion of namespaces, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_OPERATIONS = "daybook.broker.admin.operations"
_TENANCY = "daybook.broker.namespaces.tenancy"
_FACTORY = "daybook.broker.topics.managed_ledger_factory"
_TESTS = "tests:tests/broker/control/test_namespaces_that_are_deleted.py"

MUTANTS = [
    Mutant(
        id="NS05",
        rule="a policy lets clients create as many partitions as a topic may have -> any number",
        module="daybook.broker.namespaces.policies",
        name="Policies.create_partitioned",
        replacement=Edit("1 <= partitions <= limit", "partitions"),
        caught_by=f"{_TESTS} -k no_more_partitions",
    ),
    Mutant(
        id="NS01",
        rule="the default namespace is refused at first -> when its topics are deleted",
        module=_TENANCY,
        name="Tenancy.mark_deleted",
        replacement=Edit("deleted and namespace == DEFAULT_NAMESPACE", "False"),
        caught_by=f"{_TESTS} -k default",
    ),
    Mutant(
        id="NS02",
        rule="a deletion that is given up takes the mark off -> only one that is refused",
        module=_OPERATIONS,
        name="Operations.delete_namespace",
        replacement=Edit("except BaseException:", "except BrokerError:"),
        caught_by=f"{_TESTS} -k given_up",
    ),
    Mutant(
        id="NS03",
        rule="a topic is created while its namespace is not marked -> it was not, a moment ago",
        module=_FACTORY,
        name="ManagedLedgerFactory.create",
        replacement=Edit("condition=live", "condition=None"),
        caught_by=f"{_TESTS} -k has_gone",
    ),
    Mutant(
        id="NS04",
        rule="a namespace goes if it was marked all the time -> if it was marked at first",
        module=_OPERATIONS,
        name="Operations.delete_namespace",
        replacement=Edit("namespace, marked)", "namespace)"),
        caught_by=f"{_TESTS} -k taken_off",
    ),
]
