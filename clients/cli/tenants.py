"""`daybook tenants`: create, list and delete tenants, which group namespaces; their admins."""

from collections.abc import Sequence

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.roles import ROLE
from daybook.clients.python.admin import Admin


@click.group()
def tenants() -> None:
    """Create, list and delete tenants.  A tenant groups namespaces: TENANT/NAME."""


@tenants.command("list")
@admin_url_option
@output_option
def list_(admin_url: str, output: OutputFormat) -> None:
    """List the tenants."""
    found = ask_admin(admin_url, lambda admin: admin.tenants())
    write_rows([{"tenant": name} for name in found], ("tenant",), output)


@tenants.command()
@click.argument("tenant")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="NAME",
    help="A cluster that may have namespaces of the tenant; may be repeated.  [default: all]",
)
@click.option(
    "--admin",
    "admins",
    multiple=True,
    type=ROLE,
    metavar="ROLE",
    help="A role that may do everything in the tenant; may be repeated.",
)
@admin_url_option
@output_option
def create(
    tenant: str,
    clusters: tuple[str, ...],
    admins: tuple[str, ...],
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Create a TENANT, so that `daybook namespaces create TENANT/NAME` is possible."""

    async def ask(admin: Admin) -> list[str]:
        allowed = list(clusters) or await admin.clusters()
        await admin.create_tenant(tenant, allowed, admins)
        return allowed

    allowed = ask_admin(admin_url, ask, changes=True)
    shown = allowed if output == "json" else ", ".join(allowed)
    write_record({"tenant": tenant, "clusters": shown, **_admins(admins, output)}, output)


@tenants.command()
@click.argument("tenant")
@click.option("--add", "added", type=ROLE, multiple=True, help="One more; may be repeated.")
@click.option("--remove", "removed", multiple=True, metavar="ROLE", help="One less.")
@click.option("--dry-run", is_flag=True, help="Say who would be the admins, and change nothing.")
@yes_option
@admin_url_option
@output_option
def admins(
    tenant: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Show or change the admins of a TENANT: roles that may do everything in it."""
    before = ask_admin(admin_url, lambda admin: admin.tenant_admins(tenant))
    if unknown := sorted({*removed} - {*before}):
        raise UserError(f"{', '.join(unknown)} is no admin of the tenant {tenant}.")
    after = sorted(({*before} | {*added}) - {*removed})
    if after != sorted(before) and not dry_run:
        if removed:
            confirm(f"Take the tenant {tenant} from {', '.join(removed)}?", yes=yes)
        ask_admin(admin_url, lambda admin: admin.set_tenant_admins(tenant, after), changes=True)
    write_record({"tenant": tenant, **_admins(after, output)}, output)


def _admins(roles: Sequence[str], output: OutputFormat) -> dict[str, object]:
    return {"admins": list(roles) if output == "json" else ", ".join(roles) or "-"}


@tenants.command()
@click.argument("tenant")
@yes_option
@click.option("--dry-run", is_flag=True, help="Say if it would be deleted, and delete nothing.")
@admin_url_option
@output_option
def delete(tenant: str, yes: bool, dry_run: bool, admin_url: str, output: OutputFormat) -> None:
    """Delete a TENANT that has no namespaces."""
    if dry_run:
        found = ask_admin(admin_url, lambda admin: admin.namespaces(tenant))
        state = "has namespaces, so it is not deleted" if found else "would be deleted"
        write_record({"tenant": tenant, "namespaces": len(found), "deleted": state}, output)
        return
    confirm(f"Delete the tenant {tenant}?", yes=yes)
    ask_admin(admin_url, lambda admin: admin.delete_tenant(tenant), changes=True)
    write_record({"tenant": tenant, "deleted": True}, output)
