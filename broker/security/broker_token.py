"""The token by which a broker introduces itself to other brokers.

The file is read each time the token is needed, so a new token counts without a restart.
"""

from pathlib import Path

from daybook.broker.security.tokens import TOKEN_BYTES_MAX
from daybook.wire.changing_files import read_regular
from daybook.wire.logging import Log, silent_log


class BrokerToken:
    """One instance per broker.  Without a file, the broker introduces itself without a token."""

    def __init__(self, path: str = "", log: Log | None = None) -> None:
        self._path = path
        self._log = log or silent_log()
        self._last = b""
        self._readable = True

    @property
    def method(self) -> str:
        return "token" if self._path else "none"

    def read(self) -> bytes:
        """Return the token, b"" if there is none.  If the file is away, the last one counts."""
        if not self._path:
            return b""
        try:
            self._last = read_regular(Path(self._path), TOKEN_BYTES_MAX).strip()
            self._readable = True
        except (OSError, ValueError) as error:
            if self._readable:
                self._readable = False
                self._log.error(
                    "the token of this broker cannot be read: other brokers may refuse it",
                    broker_token_file=self._path,
                    why=str(error),
                )
        return self._last
