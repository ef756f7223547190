"""The users of a bookie, in a file as Apache's `htdigest` writes it: one `user:realm:hash` a line.

    htdigest -c /etc/daybook/bookie.users bookkeeper broker

The realm must be `bookkeeper`, as in Apache's bookies.  The file holds hashes; whoever reads them
can pretend to be these users to bookies, so it must be kept as secret as passwords are.

A changed file counts at the next connection, half a second later at most.  While the new file
cannot be used, the users that were read last count, so that half a file locks nobody out.
"""

from pathlib import Path

import trio

from daybook.wire.changing_files import FileStamp, read_stamped, stamp_of
from daybook.wire.digest_users import USERS_BYTES_MAX, parse_users
from daybook.wire.logging import Log
from daybook.wire.settings import ConfigError

_LOOK_S = 0.5


class Users:
    """The users in one file.  Raise ConfigError if it cannot be used at the start."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._looked_at = -_LOOK_S
        self._stamp: FileStamp | None = None
        self._secrets: dict[str, bytes] = {}
        self._usable = True
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"users_file {path}: {error}") from None

    def secret(self, user: str) -> bytes | None:
        """Return the hash that stands for the password of a user; None if there is no such one."""
        now = trio.current_time()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._look()
        return self._secrets.get(user)

    def _look(self) -> None:
        try:
            if stamp_of(self._path) != self._stamp:
                self._read()
            self._usable = True
        except (OSError, ValueError) as error:
            if self._usable:
                self._usable = False
                self._log.error(
                    "the file of users cannot be read, so the users that were read last count",
                    users_file=str(self._path),
                    why=str(error),
                )

    def _read(self) -> None:
        stamp, content = read_stamped(self._path, USERS_BYTES_MAX)
        self._secrets = parse_users(content.decode())
        self._stamp = stamp
