"""`daybook certificates`: an authority of one's own, and certificates that it signs.

All files of an authority are in one directory (`--directory`, else ./certificates):

    authority.pem, authority.key    the authority; brokers and clients trust authority.pem
    NAME.pem, NAME.key              the certificate of a server or client, and its private key

Only the owner can read the keys.  `--renew` keeps the key of a certificate and replaces one file in
one step, so that a server which reads it at that moment gets a pair that fits.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import make_directory, replace, write_new
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.wire.clock import SystemClock

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    from daybook.clients.cli.authority import Authority, Issued

Function = TypeVar("Function", bound=Callable[..., object])
_DIRECTORY = "certificates"
_AUTHORITY = "authority"
_DAYS, _DAYS_MAX = 90, 825  # a longer life is refused by some clients
_COLUMNS = ("file", "kind", "name", "names", "from", "until", "days left", "signed by")


@click.group()
def certificates() -> None:
    """Make an authority and certificates for TLS, and show them.  No broker has to run.

    Keep the directory of the authority away from the servers: who has its key can pose as any of
    them.
    """


def _directory_option(function: Function) -> Function:
    option = click.option(
        "--directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=_DIRECTORY,
        show_default=True,
        help="The directory of the authority and its certificates.",
    )
    return option(function)


def _life_options(function: Function) -> Function:
    days = click.option(
        "--days",
        type=click.IntRange(1, _DAYS_MAX),
        default=_DAYS,
        show_default=True,
        help="How long the certificate is valid.",
    )
    renew = click.option(
        "--renew",
        is_flag=True,
        help="Replace the certificate that is there.  Its key stays, and so do its names, unless"
        " --san gives others.",
    )
    return days(renew(function))


@certificates.command("create-authority")
@_directory_option
@output_option
def create_authority(directory: Path, output: OutputFormat) -> None:
    """Make an authority, which is valid for ten years."""
    from daybook.clients.cli.authority import Authority

    own = Authority.create(_now()).pair()
    make_directory(directory)
    certificate, key = _files(directory, _AUTHORITY)
    _write_pair(certificate, key, own)
    write_record({"authority": str(certificate), "private key": str(key)}, output)


@certificates.command("create-server")
@click.argument("host")
@click.option(
    "--san",
    "names",
    multiple=True,
    metavar="NAME",
    help="A further name or address of the server.  May be given more than once.",
)
@_life_options
@_directory_option
@output_option
def create_server(
    host: str, names: tuple[str, ...], days: int, renew: bool, directory: Path, output: OutputFormat
) -> None:
    """Make the certificate of a broker or bookie, whose name or address is HOST.

    HOST is what clients connect to (the setting advertised_host).  The certificate is valid for the
    calls of the server to others, too.
    """
    from daybook.clients.cli.authority import names_of

    def sign(
        authority: "Authority",
        before: "x509.Certificate | None",
        key: "ec.EllipticCurvePrivateKey | None",
    ) -> "Issued":
        old = () if before is None or names else names_of(before)
        return authority.issue((host, *names, *old), timedelta(days=days), _now(), key=key)

    _issue(directory, host, renew, sign, output)


@certificates.command("create-client")
@click.argument("name")
@_life_options
@_directory_option
@output_option
def create_client(name: str, days: int, renew: bool, directory: Path, output: OutputFormat) -> None:
    """Make the certificate of a client.

    NAME is the role of the client, unless the setting certificate_roles gives it another one.
    """

    def sign(
        authority: "Authority",
        before: "x509.Certificate | None",
        key: "ec.EllipticCurvePrivateKey | None",
    ) -> "Issued":
        del before
        return authority.issue_to_client(name, timedelta(days=days), _now(), key=key)

    _issue(directory, name, renew, sign, output)


@certificates.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@_directory_option
@output_option
def show(files: tuple[Path, ...], directory: Path, output: OutputFormat) -> None:
    """Show certificates: those in FILES, or all in the directory."""
    from daybook.clients.cli.authority import read_certificate

    found = files or tuple(sorted(directory.glob("*.pem")))
    if not found:
        raise UserError(f"There are no certificates (*.pem) in {directory}.")
    write_rows([_row(file, read_certificate(file)) for file in found], _COLUMNS, output)


def _row(file: Path, certificate: "x509.Certificate") -> dict[str, Any]:
    from daybook.clients.cli.authority import common_name_of, issuer_of, kind_of, names_of

    until = certificate.not_valid_after_utc
    return {
        "file": str(file),
        "kind": kind_of(certificate),
        "name": common_name_of(certificate),
        "names": ",".join(names_of(certificate)) or None,
        "from": f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M}",
        "until": f"{until:%Y-%m-%d %H:%M}",
        "days left": (until - _now()).days,
        "signed by": issuer_of(certificate),
    }


def _issue(
    directory: Path,
    name: str,
    renew: bool,
    sign: Callable[
        ["Authority", "x509.Certificate | None", "ec.EllipticCurvePrivateKey | None"], "Issued"
    ],
    output: OutputFormat,
) -> None:
    """Sign a certificate, and write it with its key; with `renew`, to the key that is there."""
    from daybook.clients.cli.authority import Authority, read_certificate, read_key

    if not name or name in (".", "..", _AUTHORITY) or "/" in name:
        raise UserError(f"{name!r} cannot be the name of a certificate.")
    if not (directory / f"{_AUTHORITY}.pem").exists():
        raise UserError(
            f"There is no authority in {directory}: make one with `daybook certificates"
            f" create-authority --directory {directory}`, or name its directory."
        )
    authority = Authority.load(*_files(directory, _AUTHORITY), _now())
    certificate, key = _files(directory, name)
    if renew:
        issued = sign(authority, read_certificate(certificate), read_key(key))
        replace(certificate, issued.certificate, public=True)
    else:
        _write_pair(certificate, key, sign(authority, None, None))
    record = {"certificate": str(certificate), "private key": str(key)}
    write_record({**record, "authority": str(directory / f"{_AUTHORITY}.pem")}, output)


def _write_pair(certificate: Path, key: Path, issued: "Issued") -> None:
    if certificate.exists():
        raise UserError(f"{certificate} exists already, and is not overwritten.")
    write_new(key, issued.key)
    write_new(certificate, issued.certificate, public=True)


def _files(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


def _now() -> datetime:
    from daybook.clients.cli.authority import time_of

    return time_of(SystemClock())
