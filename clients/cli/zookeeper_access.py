"""How a command connects to ZooKeeper, and as whom: its options, or their variables.

    --zookeeper-tls                     DAYBOOK_ZOOKEEPER_TLS=true
    --zookeeper-user NAME               DAYBOOK_ZOOKEEPER_USER
    --zookeeper-password-file FILE      DAYBOOK_ZOOKEEPER_PASSWORD_FILE

The certificates of TLS are those of `--tls-trusted`, `--tls-certificate` and `--tls-key`.  No
command prints a password that it was given.  A command that finds a secure cluster by its directory
needs none of them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from daybook.clients.cli.errors import UserError

if TYPE_CHECKING:
    from daybook.wire.metadata.access import ZooKeeperAccess

Function = TypeVar("Function", bound=Callable[..., object])
_KEY = "daybook.clients.cli.zookeeper-access"
_TLS = "daybook.clients.cli.tls"  # where the options of TLS note what they are


def zookeeper_access_options(function: Function) -> Function:
    """Add the options; `zookeeper_access` returns what they say."""

    def note(context: click.Context, parameter: click.Parameter, value: object) -> None:
        assert parameter.name is not None
        context.meta.setdefault(_KEY, {})[parameter.name] = value

    tls = click.option(
        "--zookeeper-tls/--no-zookeeper-tls",
        default=False,
        envvar="DAYBOOK_ZOOKEEPER_TLS",
        show_envvar=True,
        expose_value=False,
        callback=note,
        help="Connect to ZooKeeper with TLS.",
    )
    user = click.option(
        "--zookeeper-user",
        envvar="DAYBOOK_ZOOKEEPER_USER",
        show_envvar=True,
        metavar="NAME",
        expose_value=False,
        callback=note,
        help="The user by which this command proves who it is to ZooKeeper.",
    )
    password = click.option(
        "--zookeeper-password-file",
        envvar="DAYBOOK_ZOOKEEPER_PASSWORD_FILE",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        expose_value=False,
        callback=note,
        help="A file with the password of that user.",
    )
    return tls(user(password(function)))


def zookeeper_given() -> Mapping[str, Any]:
    """Return the values of the options of the running command, by the names of its parameters."""
    context = click.get_current_context(silent=True)
    given: Mapping[str, Any] = {} if context is None else context.meta.get(_KEY, {})
    return given


def zookeeper_access(zookeeper: str = "") -> "ZooKeeperAccess":
    """Return what the options of this command say about the ZooKeeper at an address.

    The directory of a secure cluster says the rest, if it gave the address.  Raise UserError.
    """
    from daybook.clients.cli.directory_keys import keys_for_zookeeper
    from daybook.wire.metadata.access import ZooKeeperAccess
    from daybook.wire.tls_files import TlsFiles

    context = click.get_current_context(silent=True)
    if context is None:
        return ZooKeeperAccess()
    given = context.meta.get(_KEY, {})
    user: str = given.get("zookeeper_user") or ""
    file: Path | None = given.get("zookeeper_password_file")
    if bool(user) != (file is not None):
        raise UserError(
            "--zookeeper-user and --zookeeper-password-file belong together: give both, or neither."
        )
    if ":" in user:
        raise UserError("--zookeeper-user must not have a colon.")
    keys = keys_for_zookeeper(zookeeper)
    if not given.get("zookeeper_tls") and not keys:
        return ZooKeeperAccess(user=user, password_file=file)
    tls = {**keys, **context.meta.get(_TLS, {})}
    files = TlsFiles(tls.get("certificate"), tls.get("key"), tls.get("trusted"))
    return ZooKeeperAccess(files, bool(tls.get("verify_host", True)), user, file)
