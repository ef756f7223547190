"""`daybook permissions`: grant, revoke and list the rights of roles, as Pulsar has them."""

from collections.abc import Mapping
from functools import partial

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_namespace, parse_topic
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.granted import Granted, Place, is_open, read_granted
from daybook.clients.cli.options import Function, admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.roles import ROLE
from daybook.clients.python.admin import Admin
from daybook.clients.python.admin_rights import Permissions

_COLUMNS = ("role", "actions")
_OFF = (
    "rights do not count yet: the brokers have no `authorization`, so each client may do everything"
)


@click.group()
def permissions() -> None:
    """Grant, revoke and list the rights of roles on namespaces, topics and subscriptions.

    They count with the setting `authorization` of the brokers. Only a super user, or an admin of
    the tenant (see `daybook tenants admins`), may grant and revoke them.
    """


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


def _place(namespace: str | None, topic: str | None, subscription: str | None) -> Place:
    if (namespace is None) == (topic is None):
        raise click.UsageError("Give --namespace or --topic.")
    if topic is not None:
        if subscription is not None:
            raise click.UsageError(
                "--subscription needs --namespace: subscriptions have rights by their name, in all"
                " topics of a namespace."
            )
        name = parse_topic(topic)
        return Place(name.namespace, name)
    return Place(parse_namespace(namespace or ""), None, subscription)


async def _listed(place: Place, admin: Admin) -> Permissions:
    """Return what each role may do there; for a subscription, its roles with no actions."""
    if place.topic is not None:
        return await admin.topic_permissions(place.topic.full)
    if place.subscription is None:
        return await admin.namespace_permissions(place.namespace)
    roles = (await admin.subscription_permissions(place.namespace)).get(place.subscription, [])
    return {role: [] for role in roles}


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
    found = ask_admin(admin_url, partial(_listed, place))
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
@click.argument("role", type=ROLE)
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

    async def ask(admin: Admin) -> tuple[Granted, bool]:
        before = await read_granted(admin, place.namespace)
        if place.topic is not None:
            await admin.topic_permissions(place.topic.full)  # It says if there is no such topic.
        off = await is_open(admin)
        if not dry_run:
            await _grant(admin, place, role, named, before)
        return before, off

    before, rights_are_off = ask_admin(admin_url, ask, changes=not dry_run)
    shown = {"granted": named} if place.subscription is None else {}
    notes = _notes(before.beyond(place, role, named), _OFF if rights_are_off else "")
    state = "would be granted" if dry_run else "granted"
    facts: dict[str, str | list[str]] = {"before": before.at(place, role), **shown}
    _write(place, role, {**facts, "state": state, **notes}, output)


async def _grant(
    admin: Admin, place: Place, role: str, actions: list[str], before: Granted
) -> None:
    if place.topic is not None:
        await admin.grant_on_topic(place.topic.full, role, actions)
    elif place.subscription is None:
        await admin.grant_on_namespace(place.namespace, role, actions)
    else:
        roles = [*before.of_subscriptions.get(place.subscription, []), role]
        await admin.grant_on_subscription(place.namespace, place.subscription, roles)


@permissions.command()
@click.argument("role", type=ROLE)
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

    Rights on a topic by its namespace stay: the command says so, and `revoke --namespace` ends
    them. A subscription without roles is for all who may consume.
    """
    place = _place(namespace, topic, subscription)
    before = ask_admin(admin_url, lambda admin: read_granted(admin, place.namespace))
    stays = before.beyond(place, role, [])
    if not before.at(place, role):
        itself = f" itself; {stays}" if stays else ""
        raise UserError(f"The role {role} has no right on {place}{itself}.")
    facts: dict[str, str | list[str]] = {"before": before.at(place, role)}
    facts |= _notes(_last_role(before, place, role), stays)
    if dry_run:
        _write(place, role, {**facts, "state": "would be revoked"}, output)
        return
    confirm(f"Revoke the rights of {role} on {place}, and close what it has open?", yes=yes)
    ask_admin(admin_url, lambda admin: _revoke(admin, place, role), changes=True)
    _write(place, role, {**facts, "state": "revoked"}, output)


def _last_role(before: Granted, place: Place, role: str) -> str:
    """Return a warning if the subscription is for this role alone."""
    if place.subscription is None or before.of_subscriptions[place.subscription] != [role]:
        return ""
    return "no role is left, so all who may consume may use it"


async def _revoke(admin: Admin, place: Place, role: str) -> None:
    if place.topic is not None:
        await admin.revoke_on_topic(place.topic.full, role)
    elif place.subscription is None:
        await admin.revoke_on_namespace(place.namespace, role)
    else:
        await admin.revoke_on_subscription(place.namespace, place.subscription, role)


def _notes(*notes: str) -> dict[str, str]:
    said = "; ".join(note for note in notes if note)
    return {"note": said} if said else {}


def _write(
    place: Place, role: str, facts: Mapping[str, str | list[str]], output: OutputFormat
) -> None:
    """Print what happens to the rights of a role; lists are actions."""
    shown = {
        name: ",".join(value) or "-" if isinstance(value, list) and output == "table" else value
        for name, value in facts.items()
    }
    write_record({"role": role, **place.record, **shown}, output)
