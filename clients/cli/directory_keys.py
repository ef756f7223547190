"""The credentials of a secure standalone cluster, for commands that its data directory leads to.

A command that finds the cluster by the directory, and by nothing else, trusts the authority in the
directory and shows the token of its admin to brokers, and the certificate of the admin to bookies
and to ZooKeeper.  They are for the addresses of the directory alone, and for the bookies that its
ZooKeeper names.
"""

from dataclasses import dataclass
from pathlib import Path

import click

from daybook.clients.cli.directory import Saved
from daybook.clients.cli.secure import FOLDER, Security

_KEYS = "daybook.clients.cli.directory-keys"


def note_keys(directory: Path, saved: Saved | None) -> None:
    """Note that the running command takes an address from a directory."""
    context = click.get_current_context(silent=True)
    if context is not None and saved is not None and saved.security == "secure":
        security = Security((directory / FOLDER).absolute(), (), "bookies" in saved.locked)
        context.meta[_KEYS] = _Noted(security, saved)


def directory_keys(url: str) -> Security | None:
    """Return the files of the directory that gave the command this address, or None."""
    found = _noted()
    if found is None or url not in (found.saved.service_url, found.saved.admin_url):
        return None
    return found.security


def keys_for_zookeeper(zookeeper: str) -> dict[str, Path]:
    """Return the files of TLS for the ZooKeeper at this address; none if it asks for none."""
    found = _noted()
    if found is None or "zookeeper" not in found.saved.locked:
        return {}
    return found.security.admin_files if zookeeper == found.saved.zookeeper_address else {}


def keys_for_bookies(zookeeper: str) -> dict[str, Path]:
    """Return the files of TLS for the bookies that this ZooKeeper names; none if they need none."""
    found = _noted()
    if found is None or not found.security.storage:
        return {}
    return found.security.admin_files if zookeeper == found.saved.zookeeper_address else {}


@dataclass(frozen=True, slots=True)
class _Noted:
    security: Security
    saved: Saved


def _noted() -> _Noted | None:
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    found: _Noted | None = context.meta.get(_KEYS)
    return found
