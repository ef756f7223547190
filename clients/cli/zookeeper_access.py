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
from click.core import ParameterSource

from daybook.clients.cli.context_storage import files_of_context, with_context
from daybook.clients.cli.errors import UserError

if TYPE_CHECKING:
    from daybook.wire.metadata.access import ZooKeeperAccess

Function = TypeVar("Function", bound=Callable[..., object])
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
_KEY = "daybook.clients.cli.zookeeper-access"
_TLS = "daybook.clients.cli.tls"  # where the options of TLS note what they are


def zookeeper_access_options(function: Function) -> Function:
    """Add the options; `zookeeper_access` returns what they say."""

    def note(context: click.Context, parameter: click.Parameter, value: object) -> None:
        assert parameter.name is not None
        if context.get_parameter_source(parameter.name) in _GIVEN:
            context.meta.setdefault(_KEY, {})[parameter.name.removeprefix("zookeeper_")] = value

    tls = click.option(
        "--zookeeper-tls/--no-zookeeper-tls",
        default=None,
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


def zookeeper_given(address: str = "") -> dict[str, Any]:
    """Return tls, user and password_file of the running command, None for what nobody says.

    The context that has the address says what the options and variables do not say.
    """
    context = click.get_current_context(silent=True)
    given: Mapping[str, Any] = {} if context is None else context.meta.get(_KEY, {})
    return with_context(address, "zookeeper", dict(given))


def zookeeper_access(zookeeper: str = "") -> "ZooKeeperAccess":
    """Return what the options of this command say about the ZooKeeper at an address.

    The context, or the directory of a secure cluster, says the rest, if it gave the address.  The
    address may be that of the brokers, if they tell where ZooKeeper is.  Raise UserError.
    """
    from daybook.clients.cli.directory_keys import keys_for_zookeeper
    from daybook.wire.metadata.access import ZooKeeperAccess
    from daybook.wire.tls_files import TlsFiles

    context = click.get_current_context(silent=True)
    if context is None:
        return ZooKeeperAccess()
    given = zookeeper_given(zookeeper)
    user: str = given["user"] or ""
    file = None if given["password_file"] is None else Path(given["password_file"])
    if bool(user) != (file is not None):
        raise UserError(
            "--zookeeper-user and --zookeeper-password-file belong together: give both, or neither."
        )
    if ":" in user:
        raise UserError("--zookeeper-user must not have a colon.")
    keys = keys_for_zookeeper(zookeeper)
    if given["tls"] is False or not (given["tls"] or keys):
        return ZooKeeperAccess(user=user, password_file=file)
    tls = {**keys, **files_of_context(zookeeper), **context.meta.get(_TLS, {})}
    files = TlsFiles(*(_path(tls.get(name)) for name in ("certificate", "key", "trusted")))
    return ZooKeeperAccess(files, bool(tls.get("verify_host", True)), user, file)


def _path(path: "str | Path | None") -> Path | None:
    return None if path is None else Path(path)


def remedy_for(error: BaseException) -> str:
    """Return what helps if ZooKeeper is locked for this command; "" if that is not the reason."""
    from daybook.wire.metadata.store import AccessDeniedError

    words = str(error)
    if isinstance(error, AccessDeniedError):
        return (
            "Say who you are with --zookeeper-user and --zookeeper-password-file, or with"
            " --tls-certificate and --tls-key (a context holds them: `daybook context add`)."
        )
    if "port with TLS" in words:
        return (
            "If ZooKeeper is locked, add --zookeeper-tls with --tls-trusted, --tls-certificate and"
            " --tls-key, perhaps --zookeeper-user and --zookeeper-password-file (a context holds"
            " them all: `daybook context add`)."
        )
    if "TLS with ZooKeeper" in words:
        return (
            "--tls-trusted names the authority of ZooKeeper, --tls-certificate and --tls-key the"
            " certificate that it asks this command for."
        )
    return ""
