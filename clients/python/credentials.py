"""The credentials of a client: a token, or a user and a password.

    connect(url, token="eyJ...")                 the token itself
    connect(url, token="file:///run/token")      a file, which is read again each time
    connect(url, token=lambda: vault.read())     a function, which is called each time
    connect(url, basic="user:password")

A broker asks for the token at the beginning of each connection, and once more when the token that
it has seen expires.  So a file or a function keeps a client connected for as long as it has a valid
token.  A function must not wait for long, because nothing else of the client runs meanwhile.

Credentials have no readable form: they do not get into logs, errors and plans.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from daybook.clients.python.errors import CredentialsError

Token: TypeAlias = str | Callable[[], str]
_FILE = "file:"


class Credentials:
    """One instance per client.  Without arguments, a client has no credentials."""

    def __init__(self, token: Token | None = None, basic: str | None = None) -> None:
        """Raise ValueError for both, or for something that cannot be credentials."""
        if token is not None and basic is not None:
            raise ValueError("give token or basic, not both")
        if token is not None and not (isinstance(token, str) or callable(token)):
            raise TypeError(f"token must be a text or a function, not {type(token).__name__}")
        if token is not None and not token:
            raise ValueError("token is empty: give a token, or leave it out")
        if basic is not None and ":" not in basic:
            raise ValueError("basic must be 'user:password'")
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
        return b"" if self._basic is None else self._basic.encode()

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
    if not isinstance(token, str):
        try:
            token = token()
        except Exception as error:
            raise CredentialsError(
                f"the function that returns the token has failed: {type(error).__name__}"
            ) from error
    elif token.startswith(_FILE):
        path = unquote(urlsplit(token).path)
        try:
            token = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"the token file {path} cannot be read: {error}") from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise CredentialsError("the token is empty, or is not one line of ASCII")
    return token
