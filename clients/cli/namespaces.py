"""`daybook namespaces`: create, list and delete namespaces, and the policies of their topics."""

import click

from daybook.clients.cli import policies as named
from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_namespace
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import (
    OutputFormat,
    counted,
    output_option,
    write_record,
    write_rows,
)
from daybook.clients.cli.policy_words import words
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import ConflictError

_COLUMNS = ("policy", "value")


@click.group()
def namespaces() -> None:
    """Create, list and delete namespaces, and set policies for their topics.

    A namespace is written TENANT/NAME.
    """


@namespaces.command("list")
@click.argument("tenant", default="public")
@admin_url_option
@output_option
def list_(tenant: str, admin_url: str, output: OutputFormat) -> None:
    """List the namespaces of a TENANT, which is public if it is not given."""
    found = ask_admin(admin_url, lambda admin: admin.namespaces(tenant))
    write_rows([{"namespace": name} for name in found], ("namespace",), output)


@namespaces.command()
@click.argument("namespace")
@admin_url_option
@output_option
def create(namespace: str, admin_url: str, output: OutputFormat) -> None:
    """Create a namespace."""
    name = parse_namespace(namespace)
    ask_admin(admin_url, lambda admin: admin.create_namespace(name), changes=True)
    write_record({"namespace": name}, output)


@namespaces.command()
@click.argument("namespace")
@click.option(
    "--force", is_flag=True, help="Delete its topics, too, with their messages and subscriptions."
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@admin_url_option
@output_option
def delete(
    namespace: str, force: bool, yes: bool, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Delete a namespace that has no topics."""
    name = parse_namespace(namespace)
    topics: list[str] = []
    if dry_run or not yes:
        topics = ask_admin(admin_url, lambda admin: admin.topics(name))
    if dry_run:
        state = "has topics: only with --force" if topics and not force else "would be deleted"
        write_record({"namespace": name, "topics": len(topics), "deleted": state}, output)
        return
    if topics and not force:
        raise UserError(
            f"The namespace {name} has {counted(len(topics), 'topic')}: delete them first, or add"
            " --force, which deletes their messages, too."
        )
    with_topics = f", {counted(len(topics), 'topic')} with all messages" if topics else ""
    confirm(f"Delete the namespace {name}{with_topics}, and its policies?", yes=yes)

    async def ask(admin: Admin) -> None:
        try:
            await admin.delete_namespace(name, force=force)
        except ConflictError as error:
            if force or "topic" not in str(error):
                raise
            raise UserError(f"{error}: --force deletes them, with their messages.") from error

    ask_admin(admin_url, ask, changes=True)
    write_record({"namespace": name, "deleted": True}, output)


@namespaces.group()
def policies() -> None:
    """Show and change policies that count for all topics of a namespace.

    A topic may have a policy of its own, which goes first (`daybook topics policies`).
    """


@policies.command("get")
@click.argument("namespace")
@click.argument("policy", required=False)
@admin_url_option
@output_option
def get(namespace: str, policy: str | None, admin_url: str, output: OutputFormat) -> None:
    """Show what a NAMESPACE says about a POLICY, or about all of them."""
    name = parse_namespace(namespace)
    names = [policy] if policy else [n for n, p in named.POLICIES.items() if p.namespace]
    rows: list[dict[str, object]] = []
    for each in names:
        found, path = named.find(each, "namespace")
        shown = found.shown(path)
        answer = ask_admin(admin_url, lambda admin, p=shown: admin.policy(name, p))  # type: ignore[misc]
        value = found.chosen(answer)
        if value is not None or policy:
            shown_value = value if output == "json" else words(each, value)
            rows.append({"policy": each, "value": shown_value})
    write_rows(rows, _COLUMNS, output)


@policies.command("set", help=f"Set a POLICY of a NAMESPACE.\n\n{named.listing('namespace')}")
@click.argument("namespace")
@click.argument("policy")
@click.argument("values", nargs=-1, required=True, metavar="VALUE...")
@admin_url_option
@output_option
def set_(
    namespace: str, policy: str, values: tuple[str, ...], admin_url: str, output: OutputFormat
) -> None:
    name = parse_namespace(namespace)
    found, path = named.find(policy, "namespace")
    value = named.parse(policy, found, values)
    ask_admin(
        admin_url,
        lambda admin: admin.set_policy(name, path, value, kind=found.kind),
        changes=True,
    )
    shown_value = value if output == "json" else words(policy, value)
    write_record({"namespace": name, "policy": policy, "value": shown_value}, output)


@policies.command("remove")
@click.argument("namespace")
@click.argument("policy")
@admin_url_option
@output_option
def remove(namespace: str, policy: str, admin_url: str, output: OutputFormat) -> None:
    """Remove a POLICY of a NAMESPACE, so that the setting of the brokers counts."""
    name = parse_namespace(namespace)
    found, path = named.find(policy, "namespace")
    ask_admin(
        admin_url, lambda admin: admin.set_policy(name, path, None, kind=found.kind), changes=True
    )
    write_record({"namespace": name, "policy": policy, "value": None}, output)
