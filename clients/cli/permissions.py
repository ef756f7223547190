"""`daybook permissions`: grant, revoke and list the rights of roles, as Pulsar has them."""

from collections.abc import Mapping
from dataclasses import dataclass

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_namespace, parse_topic
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import Function, admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.python.admin import Admin
from daybook.clients.python.admin_rights import Permissions

_COLUMNS = ("role", "actions")


@click.group()
def permissions() -> None:
    """Grant, revoke and list the rights of roles on namespaces, topics and subscriptions.

    They count with the setting `authorization` of the brokers. Only a super user, or an admin of
    the tenant (see `daybook tenants admins`), may grant and revoke them.
    """


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a right is granted: in a namespace, on a topic, or on a subscription of a namespace."""

    namespace: str
    topic: str | None
    subscription: str | None

    @property
    def record(self) -> dict[str, str]:
        if self.topic is not None:
            return {"topic": self.topic}
        found = {"namespace": self.namespace}
        return found if self.subscription is None else {**found, "subscription": self.subscription}

    def __str__(self) -> str:
        if self.topic is not None:
            return f"the topic {self.topic}"
        if self.subscription is not None:
            return f"the subscription {self.subscription} in {self.namespace}"
        return f"the namespace {self.namespace}"

    async def read(self, admin: Admin) -> Permissions:
        """Return what each role may do there; for a subscription, its roles with no actions."""
        if self.topic is not None:
            return await admin.topic_permissions(self.topic)
        if self.subscription is None:
            return await admin.namespace_permissions(self.namespace)
        roles = (await admin.subscription_permissions(self.namespace)).get(self.subscription, [])
        return {role: [] for role in roles}


def _place_options(function: Function) -> Function:
    options = (
        click.option("--namespace", metavar="TENANT/NAME", help="All topics of this namespace."),
        click.option("--topic", metavar="TOPIC", help="This topic, with its partitions."),
        click.option(
            "--subscription",
            metavar="NAME",
            help="With --namespace: the subscriptions of this name, and who may use them.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _place(namespace: str | None, topic: str | None, subscription: str | None) -> _Place:
    if (namespace is None) == (topic is None):
        raise click.UsageError("Give --namespace or --topic.")
    if topic is not None:
        if subscription is not None:
            raise click.UsageError(
                "--subscription needs --namespace: subscriptions have rights by their name, in all"
                " topics of a namespace."
            )
        name = parse_topic(topic)
        return _Place(name.namespace, name.full, None)
    return _Place(parse_namespace(namespace or ""), None, subscription)


@permissions.command("list")
@_place_options
@admin_url_option
@output_option
def list_(
    namespace: str | None,
    topic: str | None,
    subscription: str | None,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """List the roles with rights in a namespace or on a topic.

    Rights on a topic include those by its namespace. Super users and the admins of the tenant may
    do everything, and are not listed.
    """
    place = _place(namespace, topic, subscription)
    found = ask_admin(admin_url, place.read)
    if place.subscription is not None:
        rows = [{"role": role, "actions": "use"} for role in sorted(found)]
        write_rows(rows, _COLUMNS, output)
        return
    write_rows(
        [
            {"role": role, "actions": actions if output == "json" else ",".join(actions)}
            for role, actions in sorted(found.items())
        ],
        _COLUMNS,
        output,
    )


@permissions.command()
@click.argument("role")
@click.argument("actions", required=False, metavar="[produce,consume]")
@_place_options
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@admin_url_option
@output_option
def grant(
    role: str,
    actions: str | None,
    namespace: str | None,
    topic: str | None,
    subscription: str | None,
    dry_run: bool,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Let a ROLE do these actions, or use a subscription.

    The actions replace what was granted to the role at the same place. With --subscription, only
    the roles that were granted may use it from then on.
    """
    place = _place(namespace, topic, subscription)
    named = [each.strip() for each in (actions or "").split(",") if each.strip()]
    if place.subscription is None and not named:
        raise click.UsageError("Name the actions, such as produce,consume.")
    if place.subscription is not None and named:
        raise click.UsageError("A subscription has no actions: leave them out.")

    async def ask(admin: Admin) -> Permissions:
        before = await place.read(admin)
        if dry_run:
            return before
        if place.topic is not None:
            await admin.grant_on_topic(place.topic, role, named)
        elif place.subscription is None:
            await admin.grant_on_namespace(place.namespace, role, named)
        else:
            roles = [*before, role]
            await admin.grant_on_subscription(place.namespace, place.subscription, roles)
        return before

    before = ask_admin(admin_url, ask, changes=not dry_run)
    shown = {"granted": named} if place.subscription is None else {}
    state = "would be granted" if dry_run else "granted"
    _write(place, role, {"before": before.get(role, []), **shown, "state": state}, output)


@permissions.command()
@click.argument("role")
@_place_options
@click.option("--dry-run", is_flag=True, help="Say what would be revoked, and revoke nothing.")
@yes_option
@admin_url_option
@output_option
def revoke(
    role: str,
    namespace: str | None,
    topic: str | None,
    subscription: str | None,
    dry_run: bool,
    yes: bool,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Take the rights of a ROLE away, which closes its producers and consumers there.

    Rights on a topic by its namespace stay: revoke them with --namespace. A subscription without
    roles is for all who may consume.
    """
    place = _place(namespace, topic, subscription)
    before = ask_admin(admin_url, place.read)
    if role not in before:
        raise UserError(f"The role {role} has no right on {place}.")
    facts: dict[str, str | list[str]] = {"before": before[role]}
    if place.subscription is not None and [*before] == [role]:
        facts["note"] = "no role is left, so all who may consume may use it"
    if dry_run:
        _write(place, role, {**facts, "state": "would be revoked"}, output)
        return
    confirm(f"Revoke the rights of {role} on {place}, and close what it has open?", yes=yes)

    async def ask(admin: Admin) -> None:
        if place.topic is not None:
            await admin.revoke_on_topic(place.topic, role)
        elif place.subscription is None:
            await admin.revoke_on_namespace(place.namespace, role)
        else:
            await admin.revoke_on_subscription(place.namespace, place.subscription, role)

    ask_admin(admin_url, ask, changes=True)
    _write(place, role, {**facts, "state": "revoked"}, output)


def _write(
    place: _Place, role: str, facts: Mapping[str, str | list[str]], output: OutputFormat
) -> None:
    """Print what happens to the rights of a role; lists are actions."""
    shown = {
        name: ",".join(value) or "-" if isinstance(value, list) and output == "table" else value
        for name, value in facts.items()
    }
    write_record({"role": role, **place.record, **shown}, output)
