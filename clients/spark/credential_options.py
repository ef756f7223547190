"""The options by which a query proves who it is, which the Spark source and the sink share.

    token.file                       a file with the token, on the driver and on every worker
    token                            the token itself
    basic.user, basic.password.file  a user, and a file with the password

A file is read again for each connection, and when a broker asks for a new token.  So a query runs
on for as long as somebody replaces the file before its token expires.

The token has no readable form: it does not get into logs, errors and progress reports.  In plans
and on Spark's pages, Spark itself hides options with `token` and `password` in their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from daybook.clients.python.credentials import PasswordFile

CREDENTIAL_NAMES = ("token", "token.file", "basic.user", "basic.password.file")
_FILE = "file:"


@dataclass(frozen=True, slots=True)
class QueryCredentials:
    """The arguments of `connect` with these names."""

    token: str | None = field(default=None, repr=False)  # or the URL of its file
    basic: PasswordFile | None = None


ANONYMOUS = QueryCredentials()


def parse_credentials(given: Mapping[str, str]) -> QueryCredentials:
    """Return the credentials of a query whose option names are in lower case.  Raise ValueError."""
    for name in CREDENTIAL_NAMES:
        if not given.get(name, "-").strip():
            raise ValueError(f"the option {name!r} is empty: give it a value, or leave it out")
    ways = [name for name in ("token", "token.file", "basic.user") if name in given]
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(ways)} exclude each other: give one of them")
    if ("basic.user" in given) != ("basic.password.file" in given):
        raise ValueError("basic.user and basic.password.file need each other")
    if "token" in given:
        return QueryCredentials(given["token"].strip())
    if "token.file" in given:
        return QueryCredentials(_path(given, "token.file").as_uri())
    if "basic.user" in given:
        path = str(_path(given, "basic.password.file"))
        return QueryCredentials(basic=PasswordFile(given["basic.user"].strip(), path))
    return ANONYMOUS


def _path(given: Mapping[str, str], name: str) -> Path:
    path = Path(given[name])
    if not path.is_absolute():
        raise ValueError(
            f"{name}={given[name]!r} is not an absolute path, and the workers of Spark have other"
            " directories: begin it with '/'"
        )
    return path


def credential_options(credentials: QueryCredentials) -> dict[str, str]:
    """Return options as a query takes them."""
    if credentials.basic is not None:
        basic = credentials.basic
        return {"basic.user": basic.user, "basic.password.file": str(basic.path)}
    if credentials.token is None:
        return {}
    if credentials.token.startswith(_FILE):
        return {"token.file": unquote(urlsplit(credentials.token).path)}
    return {"token": credentials.token}
