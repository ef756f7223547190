"""The checks of schemas when a producer or a consumer comes, and the answers about schemas.

    producer with a schema       the topic has it, or it may follow, and becomes a version
    producer without one         allowed, unless the policy asks for schemas and the topic has one
    consumer with a schema       it has to understand the topic's schema.  On a topic that was never
                                 used it becomes the first version
    consumer without one, or     always allowed
    with the type AUTO_CONSUME

A topic that was used without a schema, by producers or by other consumers, does not get one from a
consumer: the messages that it has are bytes.
"""

from daybook.broker.errors import IncompatibleSchemaError, InvalidSchemaError, RefusedError
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.schemas.compatibility import SchemaRules, Strategy, for_consumer
from daybook.broker.protocol.schemas.schema import (
    AUTO_CONSUME,
    UNTYPED,
    Schema,
    from_wire,
    to_wire,
    version_bytes,
    version_of,
)
from daybook.broker.schemas.records import schema_id
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.broker.topics.topic import Topic
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

UNVERSIONED = b""  # the version of what has no schema


def rules_of(policies: EffectivePolicies) -> SchemaRules:
    """Return the rules for the schemas of a topic with these policies."""
    strategy = Strategy(policies.schema_compatibility)
    return SchemaRules(
        Strategy.FULL if strategy is Strategy.UNDEFINED else strategy,
        policies.schema_auto_update_allowed,
        policies.schema_validation_enforced,
    )


class SchemaAdmission:
    """One instance per broker."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry

    async def producer(self, topic: Topic, wire: pb.Schema | None) -> bytes:
        """Return the version of a producer's schema, which is added if necessary.

        Raise InvalidSchemaError, IncompatibleSchemaError, UnavailableError.
        """
        schema, name, rules = typed(wire), topic.name, rules_of(topic.policies)
        if schema is not None:
            return version_bytes(await self.registry.add(name, schema, rules))
        if rules.enforced and await self.registry.has_schema(name):
            raise IncompatibleSchemaError(
                f"{name} has a schema, and its policies (schemaValidationEnforced) refuse"
                " producers without one: send with the schema of the topic"
            )
        return UNVERSIONED

    async def consumer(self, topic: Topic, wire: pb.Schema | None) -> None:
        """Raise IncompatibleSchemaError if the consumer does not understand the topic."""
        schema = typed(wire)
        if schema is None:
            return
        registry, name = self.registry, topic.name
        rules = rules_of(topic.policies)
        if await registry.has_schema(name):
            await registry.check(name, schema, for_consumer(rules.strategy))
        elif _was_used(topic):
            raise IncompatibleSchemaError(
                f"{name} is used without a schema, so a consumer cannot have one of type"
                f" {schema.type_name}: subscribe with bytes, or create a producer with the schema"
            )
        else:
            await registry.add(name, schema, rules)

    async def get(self, topic: TopicName, body: pb.CommandGetSchema) -> pb.CommandGetSchemaResponse:
        """Return the answer to a request for a version, or for the last one."""
        version: int | None = None
        if body.HasField("schema_version"):
            version = version_of(body.schema_version)
        if version is None:
            found = await self.registry.latest(topic)
        else:
            found = await self.registry.get(topic, version)
        if found is None:
            # Clients read this code as "there is no schema", any other as a failure.
            which = "no schema" if version is None else f"no version {version} of its schema"
            raise RefusedError(pb.TopicNotFound, f"{topic} has {which}")
        return pb.CommandGetSchemaResponse(
            request_id=body.request_id,
            schema=to_wire(schema_id(topic), found.schema),
            schema_version=version_bytes(found.version),
        )


def typed(wire: pb.Schema | None) -> Schema | None:
    """Return the schema of a request; None if the request says nothing about the messages."""
    if wire is None or wire.type in UNTYPED:
        return None
    schema = from_wire(wire)
    if not schema.data and not schema.type:
        raise InvalidSchemaError("the schema is empty")
    return schema


def _was_used(topic: Topic) -> bool:
    if len(topic.producers) or topic.log.confirmed_offset >= 0:
        return True
    consumers = (c for s in topic.subscriptions.by_name.values() for c in s.consumers.values())
    return any(consumer.schema_type != AUTO_CONSUME for consumer in consumers)
