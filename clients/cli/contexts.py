"""Contexts: clusters by name, in a file of the user, with the paths of credentials.

    ~/.config/daybook/contexts.json      (in XDG_CONFIG_HOME, if that is set)

A context has addresses, files of TLS and files of credentials, for brokers, ZooKeeper and bookies;
the credentials themselves are in none.  They are sent only to the addresses of that context, and to
the bookies that its ZooKeeper names: a command that is given another address does not show them
there.

A command takes each address from the first of these: its option, or the context that `--context`
names; its environment variable; the context that DAYBOOK_CONTEXT names, or else the one in use;
the usual places.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import exclusive, make_directory, replace

VARIABLE = "DAYBOOK_CONTEXT"
VERSION = 1
NAME_FORM = "use up to 100 letters, digits, '.', '_' and '-'"
_OTHERS_WRITE = 0o022


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One cluster.  All paths are absolute."""

    service_url: str | None = None
    admin_url: str | None = None
    zookeeper: str | None = None
    ledgers_root: str | None = None
    tls_trusted: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_verify_host: bool = True
    token_file: str | None = None
    basic_user: str | None = None
    basic_password_file: str | None = None
    zookeeper_tls: bool = False
    zookeeper_user: str | None = None
    zookeeper_password_file: str | None = None
    bookie_tls: bool = False
    bookie_user: str | None = None
    bookie_password_file: str | None = None


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The content of the file."""

    version: int = VERSION
    in_use: str = ""
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        """Raise UserError."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise UserError(f"There is no context {name!r}; there are: {known}.")
        return self.contexts[name]


def contexts_file() -> Path:
    return Path(click.get_app_dir("daybook")) / "contexts.json"


def load() -> Contexts:
    """Return the contexts of the user.  Raise UserError."""
    file = contexts_file()
    try:
        mode = file.stat().st_mode
        content = file.read_bytes()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    if mode & _OTHERS_WRITE:
        # Others could have credentials sent to an address of their own.
        raise UserError(
            f"Others may write {file}, so it is not used: look at it, and run chmod 600 {file}."
        )
    try:
        found = msgspec.json.decode(content, type=Contexts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file} is damaged ({error}): correct it, or delete it.") from None
    if found.version != VERSION:
        raise UserError(f"{file} was written by another version of Daybook: use that version.")
    return found


@contextmanager
def changed() -> Generator[Contexts]:
    """Yield the contexts, and store them when the block ends without an error.

    Raise UserError.  Other commands that change them wait meanwhile.
    """
    file = contexts_file()
    make_directory(file.parent)
    with exclusive(file):
        found = load()
        yield found
        told = json.dumps(msgspec.to_builtins(found) | {"version": VERSION}, indent=1)
        replace(file, f"{told}\n".encode())


def names() -> list[str]:
    """Return the names, for completion: no error of the file shows there."""
    try:
        return sorted(load().contexts)
    except UserError:
        return []
