"""Options that several commands share.

A command takes an address from the first of these: the option, the context that `--context` names,
its environment variable, the cluster in the directory that DAYBOOK_DIR names, the context that
DAYBOOK_CONTEXT names or that is in use, the cluster in ./daybook-data.  If none of them is set, it
tries the usual ports of this machine.  It never tries them if the user named a cluster in some way:
an empty or wrong DAYBOOK_DIR is an error, and so is DAYBOOK_SERVICE_URL without the address that
the command needs.  With the address of a secure cluster's directory come its credentials
(`directory_keys`).
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click
from click.core import ParameterSource

from daybook.clients.cli.chosen import (
    address,
    chosen,
    context_option,
    instead_of_variable,
)
from daybook.clients.cli.context_storage import files_of_context, root_of_context, with_context
from daybook.clients.cli.credentials import credential_options, given_credentials
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.zookeeper_access import zookeeper_access_options, zookeeper_given

if TYPE_CHECKING:
    from os import PathLike

    from daybook.bookie.ledger.security import BookieAccess
    from daybook.clients.cli.directory import Saved
    from daybook.clients.python.credentials import PasswordFile
    from daybook.clients.python.tls import TlsOptions

DEFAULT_DIRECTORY = "daybook-data"
SERVICE_URL = "pulsar://127.0.0.1:6650"
ADMIN_URL = "http://127.0.0.1:8080"
ZOOKEEPER = "127.0.0.1:2181"
LEDGERS_ROOT = "/ledgers"
_HOST_PORT = re.compile(r"([^\s:\[\]]+|\[[^\s\[\]]+\])(:(?P<port>\d+))?")
_PORT_MAX = 65535

Function = TypeVar("Function", bound=Callable[..., object])


_DIR = "DAYBOOK_DIR"
_PLACES = {
    "DAYBOOK_SERVICE_URL": "its brokers",
    "DAYBOOK_ADMIN_URL": "its admin interface",
    "DAYBOOK_ZOOKEEPER": "its ZooKeeper",
}


def intended_cluster(variable: str, option: str) -> "Saved | None":
    """Return the cluster of the data directory, if neither option nor environment gives an address.

    None means that the user named no cluster, and the usual ports of this machine are a fair guess.
    Raise `UserError` if the user named a cluster but not this address: a command for one cluster
    must never reach another one.
    """
    from daybook.clients.cli.directory import Directory
    from daybook.clients.cli.directory_keys import note_keys

    _check_not_empty(variable)
    _check_not_empty(_DIR)
    named = os.environ.get(_DIR)
    if named is not None:
        saved = Directory(Path(named)).load()
        if saved is None:
            raise UserError(
                f"{_DIR} is {named}, and no standalone cluster was ever started there: start one"
                f" with `daybook standalone --dir {named}`, correct {_DIR}, or unset it."
            )
        note_keys(Path(named), saved)
        return saved
    for other in _PLACES:
        if other != variable and os.environ.get(other):
            raise UserError(
                f"{other} says which cluster is meant, but not where {_PLACES[variable]} is: say"
                f" so with {option} or {variable}."
            )
    saved = Directory(Path(DEFAULT_DIRECTORY)).load()
    note_keys(Path(DEFAULT_DIRECTORY), saved)
    return saved


def _check_not_empty(variable: str) -> None:
    if os.environ.get(variable) == "":
        raise UserError(f"{variable} is set, and empty: give it a value, or unset it.")


def names_cluster() -> bool:
    """Return True if a variable says which cluster is meant."""
    return _DIR in os.environ or any(os.environ.get(each) for each in _PLACES)


def _in_context(field: str, variable: str, option: str, *others: str) -> str | None:
    """Return the address in the context of the command, if it counts and there is one.

    Without `--context`, the variables that name a cluster go before a context.
    """
    found = chosen()
    if found is None:
        return None
    if not found.typed:
        _check_not_empty(variable)
        if _DIR in os.environ and found.named:
            raise UserError(
                f"{_DIR} and DAYBOOK_CONTEXT name two clusters: unset one of them, or choose with"
                " --context."
            )
        if names_cluster():
            return None
    return address(field, option, others)


def _service_url() -> str:
    found = _in_context("service_url", "DAYBOOK_SERVICE_URL", "--service-url", "admin_url")
    if found is not None:
        return found
    saved = intended_cluster("DAYBOOK_SERVICE_URL", "--service-url")
    if saved is None:
        return SERVICE_URL
    return saved.service_url


def intended_admin_url() -> str:
    """Return the URL of the admin REST if the user gave none.  Raise `UserError` as above."""
    found = _in_context("admin_url", "DAYBOOK_ADMIN_URL", "--admin-url", "service_url")
    if found is not None:
        return found
    saved = intended_cluster("DAYBOOK_ADMIN_URL", "--admin-url")
    if saved is None:
        return ADMIN_URL
    return saved.admin_url


def intended_zookeeper() -> str:
    """Return HOST:PORT,... of ZooKeeper if the user gave none.  Raise `UserError` as above."""
    found = _in_context("zookeeper", "DAYBOOK_ZOOKEEPER", "--zookeeper")
    if found is not None:
        return found
    saved = intended_cluster("DAYBOOK_ZOOKEEPER", "--zookeeper")
    return ZOOKEEPER if saved is None else saved.zookeeper_address


def _directory() -> str:
    _check_not_empty(_DIR)
    return DEFAULT_DIRECTORY


def shown_default(usual: str) -> str:
    """Return how `--help` describes where an address comes from; `usual` is the last resort."""
    return f"the context in use, else the cluster in {DEFAULT_DIRECTORY}, else {usual}"


def dir_option(function: Function) -> Function:
    """Add `--dir`, as the parameter `directory`."""
    option = click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=_directory,
        show_default=DEFAULT_DIRECTORY,
        show_envvar=True,
        envvar=_DIR,
        help="The directory with the data of the cluster.",
    )
    return option(function)


_TLS, _TLS_GIVEN = "daybook.clients.cli.tls", "daybook.clients.cli.tls-given"


def _tls_option(function: Function) -> Function:
    """Add the options of TLS; `tls_options` returns what they say."""

    def note(context: click.Context, parameter: click.Parameter, value: object) -> None:
        assert parameter.name is not None
        source = context.get_parameter_source(parameter.name)
        if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            context.meta.setdefault(_TLS, {})[parameter.name.removeprefix("tls_")] = value
        if source is ParameterSource.COMMANDLINE:
            context.meta[_TLS_GIVEN] = parameter.opts[0]

    def file_option(name: str, help_: str) -> Callable[[Function], Function]:
        return click.option(
            f"--tls-{name}",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar=f"DAYBOOK_TLS_{name.upper()}",
            show_envvar=True,
            metavar="FILE",
            expose_value=False,
            callback=note,
            help=help_,
        )

    verify = click.option(
        "--tls-verify-host/--tls-no-verify-host",
        default=True,
        envvar="DAYBOOK_TLS_VERIFY_HOST",
        show_envvar=True,
        expose_value=False,
        callback=note,
        help="With TLS: check that the certificate of a server is made out to its host (default).",
    )
    trusted = file_option("trusted", "With TLS: the authorities that are trusted, in PEM form.")
    certificate = file_option("certificate", "With TLS: the certificate of this client.")
    key = file_option("key", "With TLS: the private key of that certificate.")
    return trusted(certificate(key(verify(function))))


def tls_options(url: str, origin: str | None = None) -> "TlsOptions | None":
    """Return the TLS of the running command for a URL; None for a URL without TLS.

    `origin` is the address of the brokers that told the URL, if the user did not give it.  Raise
    `UserError` if the user gave an option of TLS for a URL without it.
    """
    from daybook.clients.python.tls import TlsOptions, is_encrypted

    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    if is_encrypted(url):
        of_cluster = {**_tls_of_directory(origin or url), **files_of_context(origin or url)}
        return TlsOptions(**{**of_cluster, **meta.get(_TLS, {})})
    if _TLS_GIVEN in meta and not _others_use_tls(meta, origin or url):
        raise UserError(
            f"{meta[_TLS_GIVEN]} is for brokers with TLS, and {url} is without: begin the URL with"
            " pulsar+ssl:// (an admin URL with https://), or leave the option out."
        )
    return None


def _others_use_tls(meta: Mapping[Any, Any], url: str) -> bool:
    """Return True if a command reaches bookies or ZooKeeper with TLS, which has the same files."""
    bookies = with_context(url, "bookie", meta.get(_BOOKIES, {}))
    return bool(bookies["tls"] or zookeeper_given(url)["tls"])


def _tls_of_directory(url: str) -> dict[str, Any]:
    from daybook.clients.cli.directory_keys import directory_keys

    keys = directory_keys(url)
    return {} if keys is None else {"trusted": keys.trusted}


class ClientArguments(TypedDict):
    """The arguments of a client that say whom it trusts, and who it is."""

    tls: "TlsOptions | None"
    token: str | None
    basic: "PasswordFile | None"


def client_arguments(url: str, told: str | None = None) -> ClientArguments:
    """Return the TLS and the credentials of the running command for the brokers at a URL.

    `told` is the address of one of them, as the brokers at `url` have told it.  Raise UserError,
    and TlsError if that address leads out of TLS.
    """
    from daybook.clients.python.errors import TlsError
    from daybook.clients.python.tls import is_encrypted

    if told is not None and is_encrypted(url) and not is_encrypted(told):
        raise TlsError(
            f"a broker has told the address {told}, which is without TLS: it is not used"
        )
    token, basic = given_credentials(url)
    return {"tls": tls_options(told or url, url), "token": token, "basic": basic}


def service_url_option(function: Function) -> Function:
    """Add `--service-url`, `--context`, the credentials and the options of TLS."""
    refused = _instead("--admin-url", "--service-url pulsar://HOST:PORT")
    return refused(_service_url_option(security_options(function)))


def _service_url_option(function: Function) -> Function:
    option = click.option(
        "--service-url",
        default=_service_url,
        show_default=shown_default(SERVICE_URL),
        show_envvar=True,
        envvar="DAYBOOK_SERVICE_URL",
        metavar="URL",
        callback=instead_of_variable("service_url"),
        help="The brokers: pulsar://HOST:PORT,HOST:PORT,... (with TLS: pulsar+ssl://)",
    )
    return option(function)


def admin_url_option(function: Function) -> Function:
    """Add `--admin-url`, `--context`, the credentials and the options of TLS."""
    refused = _instead("--service-url", "--admin-url http://HOST:PORT")
    return refused(_admin_url_option(security_options(function)))


def cluster_options(function: Function) -> Function:
    """Add `--service-url`, `--admin-url` and what belongs to them, for a command with both."""
    return _service_url_option(_admin_url_option(security_options(function)))


def security_options(function: Function) -> Function:
    """Add `--context`, the credentials and the options of TLS."""
    return context_option(credential_options(_tls_option(function)))


def _admin_url_option(function: Function) -> Function:
    option = click.option(
        "--admin-url",
        default=intended_admin_url,
        show_default=shown_default(ADMIN_URL),
        show_envvar=True,
        envvar="DAYBOOK_ADMIN_URL",
        metavar="URL",
        callback=instead_of_variable("admin_url"),
        help="The HTTP ports of the brokers: http://HOST:PORT,HOST:PORT,... (with TLS: https://)",
    )
    return option(function)


def _instead(wrong: str, right: str) -> Callable[[Function], Function]:
    """Add a hidden option that says which address this command takes instead of `wrong`."""

    def refuse(_: click.Context, __: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"This command takes no {wrong}, but {right}.")

    return click.option(
        wrong, hidden=True, expose_value=False, callback=refuse, help=f"Refused: use {right}."
    )


def check_zookeeper(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check that `value` is HOST:PORT,...; for a URI the error says what to write instead."""
    if value is None:
        return None
    if "://" in value:
        from daybook.clients.ledgers.address import MetadataAddress

        try:
            address = MetadataAddress.parse(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
        raise click.BadParameter(
            f"write that as --zookeeper {address.hosts} --ledgers-root {address.root}."
        )
    for host in value.partition("/")[0].split(","):
        found = _HOST_PORT.fullmatch(host.strip())
        if found is None or int(found["port"] or 0) > _PORT_MAX:
            raise click.BadParameter(f"{host!r} is not HOST:PORT.")
    return value


def check_root(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check that `value` is an absolute path in ZooKeeper."""
    if value is None:
        return None
    first, *names = value.split("/")
    if first or not names or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise click.BadParameter(f"{value!r} is not a path in ZooKeeper, such as /ledgers.")
    return value


_OTHER_INSTANCE = "daybook.clients.cli.other-instance"


def other_instance_option(function: Function) -> Function:
    """Add `--other-instance`, for commands that write; see `other_instance_allowed`."""

    def note(context: click.Context, _: click.Parameter, given: bool) -> None:
        context.meta[_OTHER_INSTANCE] = given

    option = click.option(
        "--other-instance",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="Continue although the topics in this ZooKeeper are bound to other ledgers.",
    )
    return option(function)


def other_instance_allowed() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_OTHER_INSTANCE))


def _check_zookeeper(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    found = instead_of_variable("zookeeper")(context, parameter, value)
    return check_zookeeper(context, parameter, found)


def _root() -> str:
    """Return the path of the ledgers if the user gave none.  ZooKeeper is the earlier option."""
    zookeeper = click.get_current_context().params.get("zookeeper")
    return root_of_context(zookeeper or "") or LEDGERS_ROOT


def zookeeper_options(function: Function) -> Function:
    """Add `--zookeeper`, `--context` and `--ledgers-root` (or `--root`), as `zookeeper`, `root`.

    The options that say how to connect, and as whom, are added, too (`zookeeper_access`).
    """
    zookeeper = click.option(
        "--zookeeper",
        default=intended_zookeeper,
        show_default=shown_default(ZOOKEEPER),
        show_envvar=True,
        envvar="DAYBOOK_ZOOKEEPER",
        metavar="HOST:PORT,...",
        callback=_check_zookeeper,
        help="The addresses of ZooKeeper.",
    )
    root = click.option(
        "--ledgers-root",
        "--root",
        "root",
        default=_root,
        show_default=f"that of the context, else {LEDGERS_ROOT}",
        metavar="PATH",
        callback=check_root,
        help="The path of the ledgers in ZooKeeper.",
    )
    return zookeeper(root(context_option(zookeeper_access_options(_tls_option(function)))))


_STORAGE = ("tls", "user", "password_file")
_BOOKIES = "daybook.clients.cli.bookie-access"


def bookie_options(function: Function) -> Function:
    """Add `--bookie-tls`, `--bookie-user`, `--bookie-password-file`, and the files of TLS.

    `bookie_access` returns what they say.  The decorator stands above others with TLS.  The
    variables begin with DAYBOOK_BOOKIES_, because DAYBOOK_BOOKIE_ sets up a bookie.
    """

    def note(context: click.Context, parameter: click.Parameter, value: object) -> None:
        assert parameter.name is not None
        source = context.get_parameter_source(parameter.name)
        if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            context.meta.setdefault(_BOOKIES, {})[parameter.name.removeprefix("bookie_")] = value

    tls = click.option(
        "--bookie-tls/--no-bookie-tls",
        default=None,
        envvar="DAYBOOK_BOOKIES_TLS",
        show_envvar=True,
        expose_value=False,
        callback=note,
        help="Connect to bookies with TLS, and never without it.",
    )
    user = click.option(
        "--bookie-user",
        envvar="DAYBOOK_BOOKIES_USER",
        show_envvar=True,
        expose_value=False,
        callback=note,
        metavar="NAME",
        help="The user for bookies that ask for a password.",
    )
    password_file = click.option(
        "--bookie-password-file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="DAYBOOK_BOOKIES_PASSWORD_FILE",
        show_envvar=True,
        expose_value=False,
        callback=note,
        metavar="FILE",
        help="The file with the password of that user.",
    )
    given = {parameter.name for parameter in getattr(function, "__click_params__", ())}
    if "tls_trusted" not in given:
        function = _tls_option(function)
    return tls(user(password_file(function)))


def storage_options(function: Function) -> Function:
    """Add the options about bookies and ZooKeeper, for a command whose workers read from bookies.

    `storage_of_query` returns what they say.  The decorator stands above others with TLS.
    """
    return bookie_options(zookeeper_access_options(function))


def storage_of_query(service_url: str = "") -> dict[str, str]:
    """Return what the options about bookies and ZooKeeper say, as options of the Spark source.

    The context says the rest, if it has given the address of the brokers.  Workers have other
    directories, so paths are absolute.  Raise UserError for half of a pair.
    """
    from daybook.clients.cli.zookeeper_access import zookeeper_access

    context = click.get_current_context()
    access, keeper = bookie_access(service_url), zookeeper_access(service_url)
    found: dict[str, str] = {}
    if access.tls:
        found["bookie.tls"] = "true"
    if keeper.tls is not None:
        found["zookeeper.tls"] = "true"
    if found:
        tls = {**files_of_context(service_url), **context.meta.get(_TLS, {})}
        files = {name: tls.get(name) for name in ("trusted", "certificate", "key")}
        found |= {f"tls.{name}": _absolute(path) for name, path in files.items() if path}
        if keeper.tls is not None and not keeper.verify_host:
            found["tls.verifyHost"] = "false"
    for name, user, file in (
        ("bookie", access.user, access.password_file),
        ("zookeeper", keeper.user, keeper.password_file),
    ):
        if user and file is not None:
            found |= {f"{name}.user": user, f"{name}.password.file": _absolute(file)}
    return found


def given_about_storage() -> str:
    """Return an option about bookies or ZooKeeper that is on the command line; "" for none."""
    context = click.get_current_context()
    names = [f"{part}_{name}" for part in ("bookie", "zookeeper") for name in _STORAGE]
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return f"--{name.replace('_', '-')}"
    return ""


def _absolute(path: "str | PathLike[str]") -> str:
    return str(Path(path).absolute())


def bookie_access(zookeeper: str | None = None) -> "BookieAccess":
    """Return how the running command reaches the bookies that this ZooKeeper names.

    Without an address, it is the one that the command was given or has found.  Raise `UserError`
    for half of a pair.
    """
    from daybook.bookie.ledger.security import BookieAccess
    from daybook.clients.cli.directory_keys import keys_for_bookies
    from daybook.wire.settings import ConfigError

    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    if zookeeper is None and context is not None:
        zookeeper = context.params.get("zookeeper")
    zookeeper = zookeeper or ""
    keys = keys_for_bookies(zookeeper)
    given = with_context(zookeeper, "bookie", meta.get(_BOOKIES, {}))
    files = {**keys, **files_of_context(zookeeper), **meta.get(_TLS, {})}
    access = BookieAccess(
        tls=given["tls"] is not False and bool(given["tls"] or keys),
        trusted=files.get("trusted"),
        certificate=files.get("certificate"),
        key=files.get("key"),
        user=given["user"] or "",
        password_file=given["password_file"],
    )
    names = {each.name for each in (() if context is None else context.command.params)}
    alone = "bookie_tls" in names and "zookeeper_tls" not in names
    if not access.tls and _TLS_GIVEN in meta and alone:
        raise UserError(f"{meta[_TLS_GIVEN]} needs --bookie-tls: give both, or neither.")
    try:
        access.check()
    except ConfigError:
        raise UserError(
            "--bookie-user and --bookie-password-file belong together: give both, or neither."
        ) from None
    return access
