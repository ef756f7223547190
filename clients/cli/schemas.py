"""`daybook schemas`: show, add, check and delete the schemas of topics."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows

_COLUMNS = ("version", "type", "added", "bytes", "properties")
_STRUCTURED = ("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE")

_type_option = click.option(
    "--type",
    "type_",
    default="AVRO",
    show_default=True,
    help="AVRO, JSON, PROTOBUF, PROTOBUF_NATIVE, KEY_VALUE, STRING, INT64, ...",
)
_property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of the schema; may be repeated.",
)
_file_argument = click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@click.group()
def schemas() -> None:
    """Show, add, check and delete the schemas of topics.

    A topic NAME is short for persistent://public/default/NAME.  All partitions of a topic have its
    schema.
    """


@schemas.command()
@click.argument("topic")
@click.option("--version", type=click.IntRange(0), help="A version.  [default: the last one]")
@admin_url_option
@output_option
def get(topic: str, version: int | None, admin_url: str, output: OutputFormat) -> None:
    """Show the schema of a TOPIC.

    --output json writes the answer of the broker; else the definition follows the other facts.
    """
    name = parse_topic(topic).full
    found: dict[str, Any] = ask_admin(admin_url, lambda admin: admin.schema(name, version))
    if output == "json":
        write_record(found, output)
        return
    write_record({"topic": name, **_row(found)}, output)
    if found["data"]:
        click.echo()
        click.echo(_pretty(found["data"]))


@schemas.command(name="list")
@click.argument("topic")
@admin_url_option
@output_option
def list_(topic: str, admin_url: str, output: OutputFormat) -> None:
    """List the versions of the schema of a TOPIC."""
    name = parse_topic(topic).full
    found: list[dict[str, Any]] = ask_admin(admin_url, lambda admin: admin.schemas(name))
    write_rows([_row(each) for each in found], _COLUMNS, output)


@schemas.command()
@click.argument("topic")
@_file_argument
@_type_option
@_property_option
@admin_url_option
@output_option
def upload(
    topic: str,
    file: Path | None,
    type_: str,
    properties: tuple[str, ...],
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Add the schema in FILE to a TOPIC, if it is compatible.

    Administrators may add schemas where the policies of the topic forbid producers to do so.  A
    schema that the topic has already keeps its version.  Types such as STRING need no file.
    """
    name, definition = parse_topic(topic).full, _read(file, type_)
    version: int = ask_admin(
        admin_url,
        lambda admin: admin.add_schema(name, type_.upper(), definition, _pairs(properties)),
        changes=True,
    )
    write_record({"topic": name, "version": version}, output)


@schemas.command()
@click.argument("topic")
@_file_argument
@_type_option
@_property_option
@admin_url_option
@output_option
def check(
    topic: str,
    file: Path | None,
    type_: str,
    properties: tuple[str, ...],
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Say if a producer with the schema in FILE could be opened on a TOPIC; change nothing.

    The exit code is 3 if the schema is not compatible.
    """
    name, definition = parse_topic(topic).full, _read(file, type_)
    found: dict[str, Any] = ask_admin(
        admin_url,
        lambda admin: admin.check_schema(name, type_.upper(), definition, _pairs(properties)),
    )
    compatible = found["compatibility"] is True
    answer: dict[str, object] = {
        "topic": name,
        "compatible": compatible,
        "strategy": found["schemaCompatibilityStrategy"],
    }
    if not compatible:
        answer["why"] = found.get("reason", "")
    write_record(answer, output)
    if not compatible:
        raise SystemExit(3)


@schemas.command()
@click.argument("topic")
@click.option(
    "--force",
    is_flag=True,
    help="Remove all versions: messages that name one can no longer be decoded by clients that ask"
    " for it.",
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would be deleted; change nothing.")
@admin_url_option
@output_option
def delete(
    topic: str, force: bool, yes: bool, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Delete the schema of a TOPIC; its messages stay.

    Without --force the deletion is a version of its own: the next schema that is added gets the
    number behind it, and is compared with none of those before.
    """
    name = parse_topic(topic).full
    if dry_run:
        found: list[dict[str, Any]] = ask_admin(admin_url, lambda admin: admin.schemas(name))
        numbers = ", ".join(str(each["version"]) for each in found)
        write_record({"topic": name, "would delete the versions": numbers or "none"}, output)
        return
    confirm(f"Delete {'all versions of ' * force}the schema of {name}?", yes=yes)
    version: int = ask_admin(
        admin_url, lambda admin: admin.delete_schema(name, force=force), changes=True
    )
    write_record({"topic": name, "deleted up to version": version}, output)


def _row(found: Mapping[str, Any]) -> dict[str, object]:
    added = datetime.fromtimestamp(found["timestamp"] / 1000, UTC)
    return {
        "version": found["version"],
        "type": found["type"],
        "added": added.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "bytes": len(found["data"].encode()),
        "properties": ", ".join(f"{k}={v}" for k, v in sorted(found["properties"].items())),
    }


def _read(file: Path | None, type_: str) -> str:
    if file is None:
        if type_.upper() in _STRUCTURED:
            raise UserError(f"a schema of type {type_.upper()} needs a definition: name its FILE")
        return ""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        if re.match(r"[^=]+=", text) is None:
            raise UserError(f"--property {text!r} is not NAME=VALUE")
        name, _, value = text.partition("=")
        found[name] = value
    return found


def _pretty(definition: str) -> str:
    try:
        return json.dumps(json.loads(definition), indent=2, ensure_ascii=False)
    except ValueError:
        return definition
