"""`daybook tenants`: create, list and delete tenants, which group namespaces."""

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.options import OutputFormat, admin_url_option, output_option
from daybook.clients.cli.output import write_record, write_rows
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
@admin_url_option
@output_option
def create(tenant: str, clusters: tuple[str, ...], admin_url: str, output: OutputFormat) -> None:
    """Create a TENANT, so that `daybook namespaces create TENANT/NAME` is possible."""

    async def ask(admin: Admin) -> list[str]:
        allowed = list(clusters) or await admin.clusters()
        await admin.create_tenant(tenant, allowed)
        return allowed

    allowed = ask_admin(admin_url, ask, changes=True)
    shown = allowed if output == "json" else ", ".join(allowed)
    write_record({"tenant": tenant, "clusters": shown}, output)


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
