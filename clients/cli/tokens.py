"""`daybook tokens`: keys and tokens.  The commands need no broker, only the key."""

import base64
import os
import sys
import tomllib
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import write_new
from daybook.clients.cli.output import OutputFormat, output_option, write_record
from daybook.clients.cli.recovery_status import as_time
from daybook.clients.cli.revoked_tokens import check, revoke
from daybook.clients.cli.times import parse_age
from daybook.wire.clock import SystemClock
from daybook.wire.settings import ConfigError

if TYPE_CHECKING:
    from daybook.broker.security.keys import TokenKey

Function = TypeVar("Function", bound=Callable[..., object])
_SECRET_BYTES = 64  # enough for HS512
_RSA_BITS = 2048
_TOKEN_ID_BYTES = 16
_TIMES = ("iat", "nbf", "exp")
_LATEST_S = 1 << 37
_PLACE = "A file, a URL file: or data:, or base64."


@click.group()
def tokens() -> None:
    """Make keys and tokens, show, check and revoke tokens.  No broker has to run."""


tokens.add_command(revoke)
tokens.add_command(check)


def _private_key_options(function: Function) -> Function:
    secret = click.option("--secret-key", metavar="KEY", help=f"The secret key.  {_PLACE}")
    return secret(
        click.option("--private-key", metavar="KEY", help=f"The private key.  {_PLACE}")(function)
    )


def _public_key_options(function: Function) -> Function:
    secret = click.option("--secret-key", metavar="KEY", help=f"The secret key.  {_PLACE}")
    return secret(
        click.option("--public-key", metavar="KEY", help=f"The public key.  {_PLACE}")(function)
    )


def _signing_key(secret: str | None, private: str | None) -> "TokenKey":
    from daybook.broker.security.keys import private_key, secret_key

    with _one_of(secret, private, "--private-key"):
        return secret_key(secret) if secret is not None else private_key(private or "")


def _verifying_keys(secret: str | None, public: str | None) -> "tuple[TokenKey, ...]":
    from daybook.broker.security.keys import public_keys, read_key, secret_key

    with _one_of(secret, public, "--public-key"):
        if secret is not None:
            return (secret_key(secret),)
        return public_keys(read_key(public or ""))


@contextmanager
def _one_of(secret: str | None, other: str | None, option: str) -> Generator[None]:
    """Raise UserError unless one key is given, or if it cannot be read in the `with` block."""
    if (secret is None) == (other is None):
        raise UserError(f"Give one key: --secret-key or {option}.")
    try:
        yield
    except ConfigError as error:
        raise UserError(f"{error}.") from None


# -- keys


@tokens.command("create-secret-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--base64", "as_base64", is_flag=True, help="Write base64, for a data: URL.")
@output_option
def create_secret_key(file: Path, as_base64: bool, output: OutputFormat) -> None:
    """Write a new secret key to FILE, which only you can read.

    Everybody who has the key can make tokens.
    """
    secret = os.urandom(_SECRET_BYTES)  # noqa: TID251  a key comes from the system only
    write_new(file, base64.b64encode(secret) if as_base64 else secret)
    write_record({"secret key": str(file)}, output)


@tokens.command("create-key-pair")
@click.argument("private", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("public", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--algorithm",
    type=click.Choice(["ES256", "RS256"]),
    default="ES256",
    show_default=True,
    help="The algorithm of its tokens.",
)
@output_option
def create_key_pair(private: Path, public: Path, algorithm: str, output: OutputFormat) -> None:
    """Write a new key pair to the files PRIVATE and PUBLIC.

    Only the holder of the private key can make tokens.  Brokers need the public key.
    """
    made, shown = new_key_pair(algorithm)
    write_new(private, made)
    write_new(public, shown)
    write_record({"private key": str(private), "public key": str(public)}, output)


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Return a new private key for ES256 or RS256, and its public half, in PEM form."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = (
        rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
        if algorithm == "RS256"
        else ec.generate_private_key(ec.SECP256R1())
    )
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


# -- tokens


def new_token_id() -> str:
    """Return an id (`jti`) by which a single token can be revoked."""
    return os.urandom(_TOKEN_ID_BYTES).hex()  # noqa: TID251  nobody else may have it


@tokens.command()
@_private_key_options
@click.option("--subject", metavar="ROLE", help="The role that the token proves.")
@click.option(
    "--superuser",
    is_flag=True,
    help="A token for the first of super_users in the settings of --config.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Settings of a broker, which name the secret key and the super users.",
)
@click.option("--expires", metavar="AGE", help="When it expires, as 90s, 12h or 30d.  [never]")
@click.option("--not-before", metavar="AGE", help="When it begins to be valid.  [now]")
@click.option("--audience", metavar="NAME", help="The service that it is meant for.")
@click.option("--claim", "claims", multiple=True, metavar="NAME=TEXT", help="A further claim.")
@click.option("--key-id", metavar="NAME", help="The name of the key, for the header `kid`.")
def create(
    secret_key: str | None,
    private_key: str | None,
    subject: str | None,
    superuser: bool,
    config: Path | None,
    expires: str | None,
    not_before: str | None,
    audience: str | None,
    claims: tuple[str, ...],
    key_id: str | None,
) -> None:
    """Write a new token to standard output."""
    from daybook.broker.security.tokens import create as signed

    settings = _settings(config)
    if superuser:
        subject = _superuser(settings, subject, config)
    if not subject:
        raise UserError("Name the role that the token proves: --subject ROLE.")
    if secret_key is None and private_key is None:
        secret_key = _secret_of(settings)
    key = _signing_key(secret_key, private_key)
    now_s = SystemClock().now_ms() // 1000
    content: dict[str, object] = {str(settings.get("token_role_claim", "sub")): subject}
    content["jti"] = new_token_id()
    content |= _further(claims)
    if expires is not None:
        content["exp"] = now_s + _seconds("--expires", expires)
    if not_before is not None:
        content["nbf"] = now_s + _seconds("--not-before", not_before)
    if audience or settings.get("token_audience"):
        content["aud"] = audience or settings["token_audience"]
    content["iat"] = now_s
    click.echo(signed(key, content, {"kid": key_id} if key_id else {}))


def _settings(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{config} cannot be read: {error}.") from None


def _secret_of(settings: dict[str, Any]) -> str | None:
    """Return the place of the secret that signs: the single one, or the first of several."""
    if settings.get("token_secret_key"):
        return str(settings["token_secret_key"])
    places = settings.get("token_secret_keys")
    if isinstance(places, list) and places:
        return str(places[0])  # pyright: ignore[reportUnknownArgumentType]
    return None


def _superuser(settings: dict[str, Any], subject: str | None, config: Path | None) -> str:
    if subject is not None or config is None:
        raise UserError("--superuser takes the role from --config FILE, and no --subject.")
    roles = settings.get("super_users")
    if not isinstance(roles, list) or not roles:
        raise UserError(f"{config} names no super_users.")
    return str(roles[0])  # pyright: ignore[reportUnknownArgumentType]


def _seconds(option: str, text: str) -> int:
    seconds = parse_age(text)
    if seconds is None:
        raise UserError(f"{option} must be an age such as 90s, 12h or 30d, not {text!r}.")
    return seconds


def _further(claims: Iterable[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for claim in claims:
        name, equals, text = claim.partition("=")
        if not equals or not name:
            raise UserError(f"--claim must be NAME=TEXT, not {claim!r}.")
        found[name] = text
    return found


@tokens.command()
@click.argument("token", required=False)
@output_option
def show(token: str | None, output: OutputFormat) -> None:
    """Show what a TOKEN says, without checking its signature; `-` reads standard input.

    The digest is that of its signed part.  It, or the id (`jti`), revokes the token.
    """
    from daybook.broker.security.tokens import WrongCredentialsError, digest_of, unverified

    text = _text(token)
    try:
        header, claims = unverified(text)
    except WrongCredentialsError as error:
        raise UserError(f"{error}.") from None
    shown = {**header, **claims}
    if output != "json":
        shown |= {name: _with_time(shown[name]) for name in _TIMES if name in shown}
    write_record({**shown, "digest": digest_of(text).hex()}, output)


@tokens.command()
@_public_key_options
@click.argument("token", required=False)
@click.option("--audience", metavar="NAME", default="", help="The audience that it must name.")
@click.option("--role-claim", metavar="NAME", default="sub", help="The claim with the role.")
@output_option
def validate(
    secret_key: str | None,
    public_key: str | None,
    token: str | None,
    audience: str,
    role_claim: str,
    output: OutputFormat,
) -> None:
    """Check a TOKEN as a broker does, and show its role, its id and its digest.

    `-` reads standard input.  A file with several public keys counts as all of them.
    """
    from daybook.broker.security.tokens import ClaimRules, Tokens, WrongCredentialsError

    keys = _verifying_keys(secret_key, public_key)
    now_s = SystemClock().now_ms() / 1000
    try:
        found = Tokens(keys, ClaimRules(role_claim, audience)).verify(_text(token), now_s)
    except WrongCredentialsError as error:
        raise UserError(f"{error}.") from None
    left = None if found.expires_s is None else round(found.expires_s - now_s)
    assert found.token is not None
    record = {
        "role": found.role,
        "expires in s": left,
        "id": found.token.id,
        "digest": found.token.digest.hex(),
    }
    write_record(record, output)


def _with_time(value: object) -> object:
    """Return a time of a token, which counts seconds since 1970, in words, too."""
    if not isinstance(value, int | float) or not 0 <= value < _LATEST_S:
        return value
    return f"{value} ({as_time(int(value * 1000))})"


def _text(token: str | None) -> str:
    if token is None or token == "-":  # noqa: S105  standard input
        return sys.stdin.read().strip()
    return token.strip()
