"""The checks of `daybook context add`: its files, and values that no command could use.

Otherwise each command would say so later, and it would not be clear that the context is wrong.
"""

import ipaddress
from collections.abc import Iterator
from pathlib import Path

from daybook.clients.cli.contexts import Context
from daybook.clients.cli.credentials import Given, credentials_of
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.recovery_status import as_time

_ADDRESSES = ("service_url", "admin_url", "zookeeper")
_PARTS_OF_TOKEN = 3


def check(made: Context) -> list[str]:
    """Return warnings.  Raise UserError for a context that no command could use."""
    hosts = _hosts_in_the_clear(made)
    _check_tls(made)
    given = credentials_of(
        None, _path(made.token_file), made.basic_user, _path(made.basic_password_file)
    )
    _check_storage(made)
    return [*_check_files(made, given), *_shown_in_the_clear(made, given, hosts)]


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _hosts_in_the_clear(made: Context) -> dict[str, list[str]]:
    """Return the hosts of each URL that is without TLS.  Raise UserError for a wrong address."""
    from daybook.clients.python.admin import parse_admin_url
    from daybook.clients.python.pool import parse_service_url
    from daybook.clients.python.tls import is_encrypted

    addresses = [url for url in (getattr(made, field) for field in _ADDRESSES) if url]
    if not addresses:
        raise UserError("Give an address at least: --service-url, --admin-url or --zookeeper.")
    if any("@" in url for url in addresses):
        raise UserError("An address has no user and no password: give --basic-user and a file.")
    found: dict[str, list[str]] = {}
    try:
        if made.service_url is not None:
            found[made.service_url] = [host for host, _ in parse_service_url(made.service_url)]
        if made.admin_url is not None:
            found[made.admin_url] = [host for host, _ in parse_admin_url(made.admin_url)]
    except ValueError as error:
        raise UserError(f"{error}.") from None
    return {url: hosts for url, hosts in found.items() if not is_encrypted(url)}


def _check_tls(made: Context) -> None:
    from daybook.clients.python.tls import is_encrypted

    urls = [url for url in (made.service_url, made.admin_url) if url is not None]
    given = made.tls_trusted or made.tls_certificate or made.tls_key or not made.tls_verify_host
    if given and not (any(map(is_encrypted, urls)) or made.zookeeper_tls or made.bookie_tls):
        raise UserError(
            "The options of TLS are for pulsar+ssl:// and https://, and no URL begins like that;"
            " they are also for --zookeeper-tls and --bookie-tls."
        )


def _check_storage(made: Context) -> None:
    """Check the users for ZooKeeper and for bookies, and the files with their passwords."""
    from daybook.bookie.ledger.security import PasswordFile
    from daybook.wire.metadata.access import PasswordFileError, read_password
    from daybook.wire.settings import ConfigError

    for part in ("zookeeper", "bookie"):
        user, file = getattr(made, f"{part}_user"), getattr(made, f"{part}_password_file")
        if (user is None) != (file is None):
            raise UserError(
                f"--{part}-user and --{part}-password-file belong together: give both, or neither."
            )
        if user is not None and (not user or ":" in user):
            raise UserError(f"--{part}-user must not be empty, and must not have a colon.")
    try:
        if made.zookeeper_password_file is not None:
            read_password(Path(made.zookeeper_password_file))
        if made.bookie_password_file is not None:
            PasswordFile(Path(made.bookie_password_file)).read()
    except PasswordFileError as error:
        raise UserError(f"{_sentence(error)} (--zookeeper-password-file).") from None
    except ConfigError as error:
        raise UserError(f"{_sentence(error)} (--bookie-password-file).") from None


def _check_files(made: Context, given: Given) -> Iterator[str]:
    """Yield warnings.  Raise UserError for files that cannot be read, or are not what is said."""
    from daybook.clients.cli.broker_client import in_options
    from daybook.clients.python.credentials import Credentials
    from daybook.clients.python.errors import CredentialsError, TlsError
    from daybook.clients.python.tls import TlsOptions, check_files

    try:
        if given.token is not None:
            token = Credentials(given.token).data()
            if len(token.split(b".")) != _PARTS_OF_TOKEN:
                raise UserError(
                    f"{made.token_file} holds no token, which has three parts with dots in between"
                    " (--token-file)."
                )
            yield from _too_late(made.token_file or "", token.decode())
        if given.basic is not None:
            given.basic()
        if made.tls_trusted or made.tls_certificate or made.tls_key:
            check_files(TlsOptions(made.tls_trusted, made.tls_certificate, made.tls_key))
    except (CredentialsError, TlsError) as error:
        raise UserError(f"{in_options(error)}.") from None


def _too_late(file: str, token: str) -> Iterator[str]:
    """Yield a warning if a token has expired.  A token that cannot be parsed may be another's."""
    from daybook.broker.security.tokens import WrongCredentialsError, unverified
    from daybook.wire.clock import SystemClock

    try:
        expires_s = unverified(token)[1].get("exp")
    except WrongCredentialsError:
        return
    if isinstance(expires_s, int | float) and expires_s <= SystemClock().now_ms() / 1000:
        yield (
            f"the token in {file} has expired at {as_time(int(max(expires_s, -1) * 1000))}, so"
            " brokers refuse it: write a new one to that file."
        )


def _shown_in_the_clear(made: Context, given: Given, hosts: dict[str, list[str]]) -> Iterator[str]:
    """Yield a warning for each address to which credentials would travel without TLS."""
    if given != Given():
        what = "the password" if given.token is None else "the token"
        for url, those in hosts.items():
            if not all(map(_is_loopback, those)):
                yield (
                    f"{url} is without TLS, so everybody on the way can read {what} and use it:"
                    " write pulsar+ssl:// (an admin URL with https://)."
                )
    if made.zookeeper_user is not None and not made.zookeeper_tls:
        addresses = (made.zookeeper or "").partition("/")[0].split(",")
        those = [each.strip().rpartition(":")[0] or each.strip() for each in addresses]
        if not all(map(_is_loopback, those)):
            yield (
                "without --zookeeper-tls, everybody on the way to ZooKeeper can read the password"
                " of --zookeeper-user and use it."
            )


def _is_loopback(host: str) -> bool:
    """Return True for an address of this machine alone.  No name is looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
