"""`daybook schemas` against a scripted REST."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from daybook import blocking
from tests.clients.cli.conftest import Daybook, FakeAdmin

ROOT = "/admin/v2/schemas/public/default/orders"
NAME = "persistent://public/default/orders"
AVRO = '{"type":"record","name":"R","fields":[]}'


def version(number: int, data: str = AVRO) -> dict[str, Any]:
    return {
        "version": number,
        "type": "AVRO",
        "timestamp": 1_700_000_000_000,
        "data": data,
        "properties": {"owner": "me"},
    }


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "schema.avsc"
    path.write_text(AVRO)
    return str(path)


def test_get_shows_the_definition(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", f"{ROOT}/schema"] = 200, version(3)
    fake_admin.answers["GET", f"{ROOT}/schema/1"] = 200, version(1)
    code, out, _ = daybook("schemas", "get", "orders")
    assert code == 0
    assert "2023-11-14T22:13:20Z" in out
    assert out.endswith('{\n  "type": "record",\n  "name": "R",\n  "fields": []\n}\n')
    code, out, _ = daybook("schemas", "get", "orders", "--version", "1", "--output", "json")
    assert (code, json.loads(out)) == (0, version(1))


def test_a_topic_without_a_schema_is_an_error_in_words(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["GET", f"{ROOT}/schema"] = 404, {"reason": f"{NAME} has no schema"}
    code, _, error = daybook("schemas", "get", "orders")
    assert code != 0
    assert "has no schema" in error


def test_list_has_a_line_for_each_version(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer = {"getSchemaResponses": [version(1), version(2, "")]}
    fake_admin.answers["GET", f"{ROOT}/schemas"] = 200, answer
    code, out, _ = daybook("schemas", "list", "orders", "--output", "json")
    assert code == 0
    rows = json.loads(out)
    assert [(row["version"], row["bytes"]) for row in rows] == [(1, len(AVRO)), (2, 0)]


def test_upload_sends_the_file_with_its_type(
    daybook: Daybook, fake_admin: FakeAdmin, file: str
) -> None:
    fake_admin.answers["POST", f"{ROOT}/schema"] = 200, {"version": {"version": 7}}
    code, out, _ = daybook(
        "schemas", "upload", "orders", file, "--property", "a=b=c", "--output", "json"
    )
    assert (code, json.loads(out)) == (0, {"topic": NAME, "version": 7})
    assert daybook("schemas", "upload", "orders", "--type", "string")[0] == 0
    assert [asked[2] for asked in fake_admin.asked] == [
        {"type": "AVRO", "schema": AVRO, "properties": {"a": "b=c"}},
        {"type": "STRING", "schema": "", "properties": {}},
    ]
    code, _, error = daybook("schemas", "upload", "orders")
    assert code != 0
    assert "name its FILE" in error
    assert daybook("schemas", "upload", "orders", file, "--property", "x")[0] != 0


def test_check_exits_with_3_if_the_schema_does_not_fit(
    daybook: Daybook, fake_admin: FakeAdmin, file: str
) -> None:
    answer: dict[str, Any] = {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
    fake_admin.answers["POST", f"{ROOT}/compatibility"] = 200, answer
    assert daybook("schemas", "check", "orders", file)[0] == 0
    answer = {**answer, "compatibility": False, "reason": "field 'b' ..."}
    fake_admin.answers["POST", f"{ROOT}/compatibility"] = 200, answer
    code, out, _ = daybook("schemas", "check", "orders", file)
    assert code == 3
    assert "field 'b'" in out


def test_delete_and_its_dry_run(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", f"{ROOT}/schemas"] = 200, {"getSchemaResponses": [version(4)]}
    fake_admin.answers["DELETE", f"{ROOT}/schema?force=true"] = 200, {"version": 5}
    code, out, _ = daybook("schemas", "delete", "orders", "--dry-run", "--output", "json")
    assert (code, json.loads(out)["would delete the versions"]) == (0, "4")
    assert {asked[0] for asked in fake_admin.asked} == {"GET"}
    code, out, _ = daybook("schemas", "delete", "orders", "--force", "--yes", "--output", "json")
    assert (code, json.loads(out)["deleted up to version"]) == (0, 5)


def test_the_admin_client_asks_for_schemas(fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", f"{ROOT}/schema"] = 200, version(3)
    fake_admin.answers["GET", f"{ROOT}/schemas"] = 200, {"getSchemaResponses": [version(3)]}
    fake_admin.answers["POST", f"{ROOT}/schema"] = 200, {"version": {"version": 3}}
    fake_admin.answers["POST", f"{ROOT}/compatibility"] = 200, {"compatibility": True}
    fake_admin.answers["DELETE", f"{ROOT}/schema?force=false"] = 200, {"version": 4}
    with blocking.connect_admin(os.environ["DAYBOOK_ADMIN_URL"]) as admin:
        assert admin.schema("orders")["version"] == 3
        assert len(admin.schemas("orders")) == 1
        assert admin.add_schema("orders", "AVRO", AVRO) == 3
        assert admin.check_schema("orders", "AVRO", AVRO)["compatibility"]
        assert admin.delete_schema("orders") == 4
