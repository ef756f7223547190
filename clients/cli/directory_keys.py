"""The credentials of a secure standalone cluster, for commands that its data directory leads to.

A command that finds the cluster by the directory, and by nothing else, trusts the authority in the
directory and shows the token of its admin.  A command that was given an address shows nobody the
secrets of a directory.
"""

from pathlib import Path

import click
from click.core import ParameterSource

from daybook.clients.cli.directory import Saved
from daybook.clients.cli.secure import FOLDER, Security

_KEYS = "daybook.clients.cli.directory-keys"
_ADDRESSES = ("service_url", "admin_url")


def note_keys(directory: Path, saved: Saved | None) -> None:
    """Note that the running command takes an address from a directory."""
    context = click.get_current_context(silent=True)
    if context is not None and saved is not None and saved.security == "secure":
        security = Security((directory / FOLDER).absolute(), ())
        context.meta[_KEYS] = (security, (saved.service_url, saved.admin_url))


def directory_keys(url: str | None = None) -> Security | None:
    """Return the files of the directory from which the command has its addresses, or None.

    With `url`, only that address has to be one of the directory's.
    """
    context = click.get_current_context(silent=True)
    if context is None or _KEYS not in context.meta:
        return None
    found: tuple[Security, tuple[str, ...]] = context.meta[_KEYS]
    security, urls = found
    if url is not None:
        return security if url in urls else None
    for name in _ADDRESSES:
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT):
            return None
    return security
