"""Rules of topics that get more partitions, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_GROWTH = "daybook.broker.topics.growth"
_OPERATIONS = "daybook.broker.admin.operations"
_BY_GROWTH = "tests:tests/broker/test_growth.py"
_BY_BROKER = "tests:tests/broker/control/test_server.py"

MUTANTS = [
    Mutant(
        id="GR01",
        rule="a new partition has the subscriptions before it is known -> it has none",
        module=_GROWTH,
        name="_step",
        replacement=Edit("name in taken or not subscriptions", "True"),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR02",
        rule="the subscriptions of all partitions count -> those of the first one",
        module=_GROWTH,
        name="stored_subscriptions",
        replacement=Edit("range(partitions)", "range(1)"),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR03",
        rule="the broker's own cursors are no subscriptions -> they are copied",
        module=_GROWTH,
        name="stored_subscriptions",
        replacement=Edit(" or is_internal(name)", ""),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR04",
        rule="a topic with the name of a new partition is in the way -> it becomes the partition",
        module=_GROWTH,
        name="grow",
        replacement=Edit("if taken and not force:", "if False:"),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR05",
        rule="a request that was carried out late is no conflict -> it is taken for another topic",
        module=_GROWTH,
        name="grow",
        replacement=Edit(".stat.version == record.stat.version", ".stat.version"),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR06",
        rule="a topic of a namespace that is being deleted does not grow -> it does",
        module=_GROWTH,
        name="grow",
        replacement=Edit("[namespace, *step]", "step"),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR07",
        rule="a request has a bounded size -> it has all partitions",
        module=_GROWTH,
        name="_step",
        replacement=Edit("if request_bytes(step)", "if False and request_bytes(step)"),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR08",
        rule="a request without an answer is found out about -> it counts as a failure",
        module=_GROWTH,
        name="grow",
        replacement=Edit(", OutcomeUnknownError", ""),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR09",
        rule="a subscription that comes while a topic grows is completed -> it is not",
        module=_OPERATIONS,
        name="Operations.update_partitions",
        replacement=Edit("if names else {}", "if False else {}"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="GR10",
        rule="a topic that becomes a partition gets the subscriptions -> it has its own",
        module=_OPERATIONS,
        name="Operations.update_partitions",
        replacement=Edit("{} if force else subscriptions", "subscriptions"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="GR10 failed",
        rule="a subscription that cannot be completed leaves the others complete -> it ends all",
        module=_OPERATIONS,
        name="Operations.update_partitions",
        replacement=Edit("except BrokerError as error:", "except ConflictError as error:"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="GR11",
        rule="a subscription of a new partition begins before all ledgers -> behind the first one",
        module=_GROWTH,
        name="_BEFORE_ALL",
        replacement=(1 << 40, -1),
        caught_by=_BY_GROWTH,
    ),
    Mutant(
        id="GR12",
        rule="a subscription has partitions that come while it is created -> it misses them",
        module="daybook.broker.admin.topic_owners",
        name="TopicOwners.run_on_all",
        replacement=Edit("while added is not None and", "while False and"),
        caught_by=f"{_BY_BROKER} -k come_while_it_is_created",
    ),
    Mutant(
        id="GR13",
        rule="partitions that come while a topic is deleted are deleted -> they are left",
        module=_OPERATIONS,
        name="Operations.delete_partitioned",
        replacement=Edit("partitions_max=deleted", "partitions_max=None"),
        caught_by=f"{_BY_BROKER} -k come_while_a_topic_is_deleted",
    ),
]
