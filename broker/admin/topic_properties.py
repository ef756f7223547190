"""The properties of a topic: texts for people and tools, by name.

A topic keeps them in the record of its managed ledger, as Pulsar does; a partitioned topic keeps
them in its own record, and each partition has some of its own.  PUT adds properties and replaces
those of the same name.  DELETE removes the one that `key` names.

The record of a managed ledger also has properties that the brokers need.  They are neither shown
nor changed here, and a topic cannot be created with them.
"""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from daybook.broker.admin.handling import Call, Handler
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import PreconditionError
from daybook.broker.limits import check_properties
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.topics.topic_log import translated
from daybook.broker.topics.topic_properties import check_names
from daybook.wire.topics import TopicName

Properties = dict[str, str]
_Change = Callable[[Properties], Properties]


def of_topics() -> dict[str, Mapping[str, Handler[Operations]]]:
    """Return the handlers by path, below the path of a topic."""
    return {"properties": {"GET": _get, "PUT": _put, "DELETE": _delete}}


async def _get(call: Call[Operations]) -> object:
    partitioned = await call.parts.policies.partitioned(call.topic)
    if partitioned is not None:
        return partitioned.properties or {}

    async def local(topic: TopicName) -> object:
        served = await call.parts.owned.get(topic)
        return served.logs.properties(served.log)

    return await call.parts.owners.run_here(
        call.topic, local, authoritative=call.flag("authoritative")
    )


async def _put(call: Call[Operations]) -> None:
    more = await call.optional_body(Properties) or {}
    check_names(f"topic {call.topic}", more)
    await _change(call, partial(_merged, more))


async def _delete(call: Call[Operations]) -> None:
    key = call.query("key")
    if not key:
        raise PreconditionError("name the property to remove: ?key=NAME")
    check_names(f"topic {call.topic}", {key: ""})
    await _change(call, partial(_without, key))


def _merged(more: Properties, properties: Properties) -> Properties:
    return properties | more


def _without(key: str, properties: Properties) -> Properties:
    return {name: value for name, value in properties.items() if name != key}


async def _change(call: Call[Operations], change: _Change) -> None:
    def changed(properties: Properties) -> Properties:
        new = change(properties)
        if len(new) >= len(properties):  # Removing is possible however large they are.
            check_properties(f"topic {call.topic}", new)
        return new

    async def local(topic: TopicName) -> None:
        served = await call.parts.owned.get(topic)
        with translated(served.name):
            await served.logs.change_properties(served.log, changed)

    policies = call.parts.policies
    if await policies.partitioned(call.topic) is None:
        await call.parts.owners.run_here(
            call.topic, local, authoritative=call.flag("authoritative")
        )
        return

    def of_record(record: PartitionedTopic) -> PartitionedTopic:
        return replace(record, properties=changed(dict(record.properties or {})))

    await policies.change_partitioned(call.topic, of_record)
