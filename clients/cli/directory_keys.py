"""The credentials of a secure standalone cluster, for commands that its data directory leads to.

A command that finds the cluster by the directory, and by nothing else, trusts the authority in the
directory and shows the token of its admin.  They are for the addresses of the directory alone.
"""

from pathlib import Path

import click

from daybook.clients.cli.directory import Saved
from daybook.clients.cli.secure import FOLDER, Security

_KEYS = "daybook.clients.cli.directory-keys"


def note_keys(directory: Path, saved: Saved | None) -> None:
    """Note that the running command takes an address from a directory."""
    context = click.get_current_context(silent=True)
    if context is not None and saved is not None and saved.security == "secure":
        security = Security((directory / FOLDER).absolute(), ())
        context.meta[_KEYS] = (security, (saved.service_url, saved.admin_url))


def directory_keys(url: str) -> Security | None:
    """Return the files of the directory that gave the command this address, or None."""
    context = click.get_current_context(silent=True)
    if context is None or _KEYS not in context.meta:
        return None
    found: tuple[Security, tuple[str, ...]] = context.meta[_KEYS]
    security, urls = found
    return security if url in urls else None
