"""REST of schemas: versions, compatibility, deletion.

Any broker answers, since the versions of a topic are a record that all of them can change.  An
administrator may add a schema to a topic whose policies forbid producers to do so, and to a topic
that does not exist yet.
"""

from dataclasses import dataclass

import msgspec
from starlette.routing import Route

from daybook.broker.admin.handling import Call, Endpoints, Handler
from daybook.broker.errors import IncompatibleSchemaError, NotFoundError, PreconditionError
from daybook.broker.namespaces.policies import Policies
from daybook.broker.protocol.schemas.compatibility import SchemaRules
from daybook.broker.protocol.schemas.schema import Schema, SchemaVersion, from_rest, rest_text
from daybook.broker.schemas.admission import rules_of
from daybook.broker.schemas.records import StoredVersion
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.wire.topics import TopicName

_ROOT = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_LIST_BYTES_MAX = 16 << 20
_NONE = -1  # the version of a schema that the topic does not have


class _Payload(msgspec.Struct):
    """A schema as clients send it: Pulsar's PostSchemaPayload."""

    type: str
    schema: str
    properties: dict[str, str] | None = None


class _Shown(msgspec.Struct):
    """A version as clients get it: Pulsar's GetSchemaResponse."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str]


class _Place(msgspec.Struct, rename="camel"):
    ledger_id: int
    entry_id: int
    version: int


@dataclass(frozen=True, slots=True)
class SchemaParts:
    """The parts of a broker that these handlers use."""

    registry: SchemaRegistry
    policies: Policies

    async def check_namespace(self, topic: TopicName) -> None:
        """Raise NotFoundError if the namespace does not exist."""
        await self.policies.namespace(topic.namespace)


SchemaCall = Call[SchemaParts]


def routes(endpoints: Endpoints[SchemaParts]) -> list[Route]:
    table: dict[str, dict[str, Handler[SchemaParts]]] = {
        "/schema": {"GET": _latest, "POST": _add, "DELETE": _delete},
        "/schema/{version}": {"GET": _version},
        "/schemas": {"GET": _versions},
        "/metadata": {"GET": _metadata},
        "/compatibility": {"POST": _compatibility},
        "/version": {"POST": _find},
    }
    return [endpoints.route(_ROOT + path, handlers) for path, handlers in table.items()]


async def _latest(call: SchemaCall) -> object:
    topic = call.topic
    await call.parts.check_namespace(topic)
    found = await call.parts.registry.latest(topic)
    if found is None:
        raise NotFoundError(f"{topic} has no schema")
    return _shown(found)


async def _version(call: SchemaCall) -> object:
    topic, version = call.topic, call.integer("version")
    await call.parts.check_namespace(topic)
    found = await call.parts.registry.get(topic, version)
    if found is None:
        raise NotFoundError(f"{topic} has no version {version} of its schema")
    return _shown(found)


async def _versions(call: SchemaCall) -> object:
    topic, registry = call.topic, call.parts.registry
    await call.parts.check_namespace(topic)
    locator = await registry.locator(topic)
    shown: list[_Shown] = []
    size = 0
    for each in () if locator is None else locator.live:
        found = await registry.get(topic, each.version)
        if found is not None:  # It may be deleted meanwhile.
            shown.append(_shown(found))
            size += len(found.schema.data)
        if size > _LIST_BYTES_MAX:
            raise PreconditionError(
                f"the schemas of {topic} have more than {_LIST_BYTES_MAX} bytes, which is too much"
                " for one answer: ask for each version"
            )
    return {"getSchemaResponses": shown}


async def _metadata(call: SchemaCall) -> object:
    topic = call.topic
    await call.parts.check_namespace(topic)
    locator = await call.parts.registry.locator(topic)
    if locator is None:
        raise NotFoundError(f"{topic} has no schema")
    return {"info": _place(locator.last), "index": [_place(each) for each in locator.all]}


async def _add(call: SchemaCall) -> object:
    topic, schema = call.topic, await _schema(call)
    strategy = rules_of(await call.parts.policies.effective(topic)).strategy
    version = await call.parts.registry.add(topic, schema, SchemaRules(strategy))
    return {"version": {"version": version}}


async def _delete(call: SchemaCall) -> object:
    topic, registry = call.topic, call.parts.registry
    await call.parts.check_namespace(topic)
    if call.flag("force"):
        return {"version": await registry.delete_all(topic)}
    return {"version": await registry.delete(topic)}


async def _compatibility(call: SchemaCall) -> object:
    topic, schema = call.topic, await _schema(call)
    strategy = rules_of(await call.parts.policies.effective(topic)).strategy
    answer: dict[str, object] = {"compatibility": True, "schemaCompatibilityStrategy": strategy}
    try:
        await call.parts.registry.check(topic, schema, strategy)
    except IncompatibleSchemaError as error:
        answer["compatibility"] = False
        answer["reason"] = error.reason
    return answer


async def _find(call: SchemaCall) -> object:
    topic, schema = call.topic, await _schema(call)
    await call.parts.check_namespace(topic)
    found = await call.parts.registry.find(topic, schema)
    return {"version": _NONE if found is None else found}


async def _schema(call: SchemaCall) -> Schema:
    payload = await call.body(_Payload)
    return from_rest(payload.type, payload.schema, payload.properties or {})


def _shown(found: SchemaVersion) -> _Shown:
    return _Shown(
        found.version,
        found.schema.type_name,
        found.timestamp_ms,
        rest_text(found.schema),
        dict(found.schema.properties),
    )


def _place(stored: StoredVersion) -> _Place:
    return _Place(stored.ledger_id, stored.entry_id, stored.version)
