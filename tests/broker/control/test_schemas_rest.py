"""The REST of schemas over real HTTP, as pulsar-admin calls it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daybook.broker.errors import BrokerError
from daybook.broker.namespaces.policy_table import SCHEMA_COMPATIBILITY
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import open_cluster
from tests.broker.control.test_admin import Admin, serve

INVALID = 412  # The client of these tests does not know 422.
SCHEMAS = "/admin/v2/schemas/public/default/t"
ORDERS = "/admin/v2/persistent/public/default/t"


def payload(kind: str, schema: object, **properties: str) -> dict[str, Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return {"type": kind, "schema": text, "properties": properties}


def record(*fields: str, **optional: int) -> dict[str, Any]:
    members: list[dict[str, Any]] = [{"name": each, "type": "int"} for each in fields]
    members += [{"name": n, "type": "int", "default": value} for n, value in optional.items()]
    return {"type": "record", "name": "R", "fields": members}


A = payload("AVRO", record("a"), owner="me")
A_B = payload("AVRO", record("a", b=0))
B = payload("AVRO", record("b"))


@asynccontextmanager
async def one_broker() -> AsyncGenerator[Admin]:
    async with open_cluster() as cluster:
        admin = await serve(cluster, "one", set())
        await admin.broker.lookups.lookup(TopicName.parse("t"), authoritative=True)
        yield admin


async def refused(admin: Admin, method: str, path: str, body: object = None, **query: str) -> int:
    with pytest.raises(BrokerError) as caught:
        await admin(method, path, body, **query)
    return caught.value.status


async def test_versions_are_added_shown_and_deleted() -> None:
    async with one_broker() as admin:
        assert await refused(admin, "GET", f"{SCHEMAS}/schema") == 404
        assert await admin("POST", f"{SCHEMAS}/schema", A) == {"version": {"version": 0}}
        assert await admin("POST", f"{SCHEMAS}/schema", A_B) == {"version": {"version": 1}}
        assert await admin("POST", f"{SCHEMAS}/schema", A) == {"version": {"version": 0}}
        shown: Any = await admin("GET", f"{SCHEMAS}/schema/0")
        assert json.loads(shown["data"]) == record("a")
        assert (shown["version"], shown["type"]) == (0, "AVRO")
        assert shown["properties"] == {"owner": "me"}
        assert shown["timestamp"] > 0
        latest: Any = await admin("GET", f"{SCHEMAS}/schema")
        assert latest["version"] == 1
        every: Any = await admin("GET", f"{SCHEMAS}/schemas")
        assert [each["version"] for each in every["getSchemaResponses"]] == [0, 1]
        places: Any = await admin("GET", f"{SCHEMAS}/metadata")
        assert places["info"] == places["index"][1]
        assert places["index"][0] == {"ledgerId": 1001, "entryId": 0, "version": 0}

        # Deleted softly, the topic has no schema, and a new one goes on behind it.
        assert await admin("DELETE", f"{SCHEMAS}/schema") == {"version": 2}
        assert await admin("DELETE", f"{SCHEMAS}/schema") == {"version": 2}
        for path in ("schema", "schema/0", "schema/2"):
            assert await refused(admin, "GET", f"{SCHEMAS}/{path}") == 404
        assert await admin("GET", f"{SCHEMAS}/schemas") == {"getSchemaResponses": []}
        assert await admin("POST", f"{SCHEMAS}/schema", B) == {"version": {"version": 3}}

        # Deleted by force, nothing is left.
        assert await admin("DELETE", f"{SCHEMAS}/schema", force="true") == {"version": 3}
        assert await admin("DELETE", f"{SCHEMAS}/schema", force="true") == {"version": -1}
        assert await refused(admin, "DELETE", f"{SCHEMAS}/schema") == 404
        assert await refused(admin, "GET", f"{SCHEMAS}/metadata") == 404
        assert await admin("POST", f"{SCHEMAS}/schema", A) == {"version": {"version": 0}}


async def test_what_does_not_fit_is_told() -> None:
    async with one_broker() as admin:
        await admin("POST", f"{SCHEMAS}/schema", A)
        assert await refused(admin, "POST", f"{SCHEMAS}/schema", B) == 409
        assert await refused(admin, "POST", f"{SCHEMAS}/schema", payload("AVRO", "{")) == INVALID
        assert await refused(admin, "POST", f"{SCHEMAS}/schema", payload("ODD", "")) == INVALID
        assert await refused(admin, "POST", f"{SCHEMAS}/schema", payload("NONE", "")) == INVALID
        assert await refused(admin, "POST", f"{SCHEMAS}/schema", {"type": 1}) == INVALID
        answer: Any = await admin("POST", f"{SCHEMAS}/compatibility", A_B)
        assert answer == {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
        answer = await admin("POST", f"{SCHEMAS}/compatibility", B)
        assert answer["compatibility"] is False
        assert "field 'b'" in answer["reason"]
        assert await admin("POST", f"{SCHEMAS}/version", A) == {"version": 0}
        assert await admin("POST", f"{SCHEMAS}/version", B) == {"version": -1}
        assert await refused(admin, "GET", f"{SCHEMAS}/schema/x") == 412
        nowhere = "/admin/v2/schemas/public/nowhere/t"
        assert await refused(admin, "GET", f"{nowhere}/schema") == 404
        assert await refused(admin, "POST", f"{nowhere}/schema", A) == 404


async def test_a_key_value_schema_is_shown_as_json() -> None:
    types = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    body = payload("KEY_VALUE", {"key": "", "value": record("a")}, **types)
    async with one_broker() as admin:
        await admin("POST", f"{SCHEMAS}/schema", body)
        shown: Any = await admin("GET", f"{SCHEMAS}/schema")
        assert json.loads(shown["data"]) == {"key": "", "value": record("a")}
        assert shown["properties"] == types
        assert await admin("POST", f"{SCHEMAS}/version", body) == {"version": 0}
        assert (
            await refused(admin, "POST", f"{SCHEMAS}/schema", payload("KEY_VALUE", "{}")) == INVALID
        )


async def test_the_namespace_decides_about_versions() -> None:
    async with one_broker() as admin:
        await admin.broker.policies.change_namespace(
            "public/default",
            lambda fields: fields.update(
                schema_compatibility_strategy="ALWAYS_INCOMPATIBLE",
                is_allow_auto_update_schema=False,
            ),
        )
        await admin("POST", f"{SCHEMAS}/schema", A)  # An administrator may add it.
        assert await refused(admin, "POST", f"{SCHEMAS}/schema", A_B) == 409
        await admin.broker.policies.change_namespace(
            "public/default",
            lambda fields: fields.update(
                schema_compatibility_strategy="UNDEFINED",
                schema_auto_update_compatibility_strategy="AlwaysCompatible",
            ),
        )
        answer: Any = await admin("POST", f"{SCHEMAS}/compatibility", B)
        assert answer == {
            "compatibility": True,
            "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE",
        }
        # The newer form of the policy counts before the older one, and the topic before both.
        await admin.broker.policies.set_namespace_policy(
            "public/default", SCHEMA_COMPATIBILITY, "FORWARD"
        )
        answer = await admin("POST", f"{SCHEMAS}/compatibility", B)
        assert answer["schemaCompatibilityStrategy"] == "FORWARD"
        await admin.broker.policies.set_topic_policy(
            TopicName.parse("t"), SCHEMA_COMPATIBILITY, "BACKWARD"
        )
        answer = await admin("POST", f"{SCHEMAS}/compatibility", B)
        assert answer["schemaCompatibilityStrategy"] == "BACKWARD"


async def test_a_deleted_topic_takes_its_schemas_along() -> None:
    async with one_broker() as admin:
        await admin("PUT", ORDERS)
        await admin("POST", f"{SCHEMAS}/schema", A)
        await admin("DELETE", ORDERS)
        assert await refused(admin, "GET", f"{SCHEMAS}/metadata") == 404


async def test_a_deleted_partition_leaves_the_schemas_to_the_others() -> None:
    async with one_broker() as admin:
        await admin("PUT", f"{ORDERS}/partitions", 2)
        await admin("POST", f"{SCHEMAS}/schema", A)
        admin.topics.shared.add("persistent://public/default/t-partition-0")
        await admin("DELETE", f"{ORDERS}-partition-0")
        assert (await admin("GET", f"{SCHEMAS}/schema")) is not None
        await admin("DELETE", f"{ORDERS}/partitions", force="true")
        assert await refused(admin, "GET", f"{SCHEMAS}/metadata") == 404


async def test_a_deleted_namespace_takes_the_schemas_of_topics_that_do_not_exist_along() -> None:
    async with one_broker() as admin:
        await admin("PUT", "/admin/v2/namespaces/public/gone", {})
        schemas = "/admin/v2/schemas/public/gone/t%20u"
        await admin("POST", f"{schemas}/schema", A)
        await admin("DELETE", "/admin/v2/namespaces/public/gone")
        assert await admin.broker.session.get_children("/schemas/public") == []
