"""The credentials of a client: a token, or a user and a password.

    connect(url, token="eyJ...")                 the token itself
    connect(url, token="file:///run/token")      a file, which is read again each time
    connect(url, token=lambda: vault.read())     a function, which is called each time
    connect(url, basic="user:password")
    connect(url, basic=PasswordFile("user", "/run/password"))

A broker asks for the token at the beginning of each connection, and once more when the token that
it has seen expires.  So a file or a function keeps a client connected for as long as it has a valid
token.  A function must not wait for long, because nothing else of the client runs meanwhile.

Credentials have no readable form: they do not get into logs, errors and plans.  Errors name the
argument in brackets, such as (token=).
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from daybook.clients.python.errors import CredentialsError

Token: TypeAlias = str | Callable[[], str]
Basic: TypeAlias = str | Callable[[], str]
_FILE = "file:"
_FORM = "basic must be 'user:password'"


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """A user, and the file with the password, which is read anew for each connection."""

    user: str
    path: str | PathLike[str]

    def __post_init__(self) -> None:
        """Raise ValueError for a user whom no broker can know."""
        if not self.user or ":" in self.user:
            raise ValueError(f"{self.user!r} is no user: write a name without ':'")

    def __call__(self) -> str:
        """Return 'user:password'.  Raise CredentialsError."""
        password = _read(self.path, "password", "basic").rstrip("\r\n")
        if not password:
            raise CredentialsError(f"the password file {self.path} is empty (basic=)")
        return f"{self.user}:{password}"


class Credentials:
    """One instance per client.  Without arguments, a client has no credentials."""

    def __init__(self, token: Token | None = None, basic: Basic | None = None) -> None:
        """Raise ValueError for both, or for something that cannot be credentials."""
        if token is not None and basic is not None:
            raise ValueError("give token or basic, not both")
        if token is not None and not (isinstance(token, str) or callable(token)):
            raise TypeError(f"token must be a text or a function, not {type(token).__name__}")
        if token is not None and not token:
            raise ValueError("token is empty: give a token, or leave it out")
        if isinstance(basic, str) and ":" not in basic:
            raise ValueError(_FORM)
        if basic is not None and not (isinstance(basic, str) or callable(basic)):
            raise TypeError(f"basic must be a text or a function, not {type(basic).__name__}")
        self._token = token
        self._basic = basic

    def __repr__(self) -> str:
        return f"Credentials({self.method!r})"

    @property
    def method(self) -> str:
        """The name of the method, as brokers know it."""
        if self._token is not None:
            return "token"
        return "none" if self._basic is None else "basic"

    def data(self) -> bytes:
        """Return what proves who the client is, read anew.  Raise CredentialsError."""
        if self._token is not None:
            return _token(self._token).encode()
        return b"" if self._basic is None else _basic(self._basic).encode()

    def header(self) -> str:
        """Return the value of the header Authorization, "" if there is none."""
        match self.method:
            case "token":
                return f"Bearer {self.data().decode()}"
            case "basic":
                return f"Basic {base64.b64encode(self.data()).decode()}"
            case _:
                return ""


NOBODY = Credentials()


def _token(token: Token) -> str:
    what = "the token"
    if not isinstance(token, str):
        token = _called(token, "token", "token")
    elif token.startswith(_FILE):
        path = unquote(urlsplit(token).path)
        what = f"the token in {path}"
        token = _read(path, "token", "token")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise CredentialsError(f"{what} is empty, or is not one line of ASCII (token=)")
    return token


def _basic(basic: Basic) -> str:
    if isinstance(basic, str):
        return basic
    found = _called(basic, "password", "basic")
    if ":" not in found:
        raise CredentialsError(
            "the function that returns the password has no 'user:password' (basic=)"
        )
    return found


def _called(function: Callable[[], str], what: str, argument: str) -> str:
    try:
        return function()
    except CredentialsError:
        raise
    except Exception as error:
        raise CredentialsError(
            f"the function that returns the {what} has failed: {type(error).__name__} ({argument}=)"
        ) from error


def _read(path: str | PathLike[str], what: str, argument: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise CredentialsError(
            f"the {what} file {path} cannot be read: {error.strerror} ({argument}=)"
        ) from None
    except UnicodeDecodeError:
        # Its words would quote the content.
        raise CredentialsError(
            f"the {what} file {path} is not a text in UTF-8 ({argument}=)"
        ) from None
