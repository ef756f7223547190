"""Users and passwords in an htpasswd file: bcrypt, apr1 and SHA.

The file is read again when it has changed.  A password is checked in a worker thread, because
bcrypt takes long on purpose.  Two are checked at a time, and `WAITING_MAX` wait for that at most;
others are refused for the moment.  So a flood of wrong passwords takes two threads, keeps nobody
waiting for long, and does not reach those whose passwords are remembered.

Passwords that were right are remembered for a while as keyed hashes, with a key that never leaves
the process, so no password and no hash that could be tried elsewhere is kept.  The remembered hash
covers the line of the file, so a changed password counts at once.
"""

import base64
import binascii
import threading
from hashlib import blake2b, sha1
from hmac import compare_digest
from pathlib import Path
from random import Random

import bcrypt
import trio

from daybook.broker.errors import UnavailableError
from daybook.broker.security import apr1
from daybook.broker.security.identity import Identity, checked_role
from daybook.broker.security.tokens import WrongCredentialsError
from daybook.wire.changing_files import FileStamp, read_stamped, stamp_of
from daybook.wire.logging import Log
from daybook.wire.settings import ConfigError

_FILE_BYTES_MAX = 4 << 20
_CREDENTIALS_BYTES_MAX = 1 << 10
_REMEMBERED_MAX = 1_000
WAITING_MAX = 32  # passwords that are checked, or wait for it
_BCRYPT = ("$2y$", "$2b$", "$2a$")
_BCRYPT_BYTES_MAX = 72  # It would not look at further bytes.
_SHA = "{SHA}"
_KNOWN = (*_BCRYPT, "$apr1$", _SHA)
_NOBODY = "{SHA}" + base64.b64encode(bytes(20)).decode()


class Passwords:
    """The users of one file."""

    def __init__(self, path: Path, rng: Random, log: Log) -> None:
        """Read the file.  Raise ConfigError."""
        self._path = path
        self._log = log
        self._reading = threading.Lock()  # held while the file is looked at
        self._lock = threading.Lock()  # held for a moment only, as the event loop waits for it
        self._unreadable = False
        self._secret = rng.randbytes(32)
        self._right: dict[bytes, None] = {}  # keyed hashes; the one used longest ago is first
        self._threads = trio.CapacityLimiter(2)
        self._waiting = 0
        self._decoy = _NOBODY
        self._stamp: FileStamp | None = None
        self._users: dict[str, str] = {}
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"basic_file {path}: {error}") from None

    async def verify(self, data: bytes) -> Identity:
        """Return the identity of `user:password`.

        Raise WrongCredentialsError, and UnavailableError if too many passwords are being checked.
        """
        user, password = credentials_of(data)
        if not self._is_remembered(user, password):
            await self._check_in_turn(user, password)
        return Identity(user, "basic")

    def _is_remembered(self, user: str, password: bytes) -> bool:
        """Return True if the password was right lately, and the file has not changed since."""
        try:
            stamp = stamp_of(self._path)
        except OSError:
            return False
        with self._lock:
            stored = self._users.get(user)
            if stored is None or stamp != self._stamp:
                return False
            key = self._keyed(user, password, stored)
            if key not in self._right:
                return False
            del self._right[key]
            self._right[key] = None  # It is now the one used last.
            return True

    async def _check_in_turn(self, user: str, password: bytes) -> None:
        if self._waiting >= WAITING_MAX:
            raise UnavailableError("too many passwords are being checked now: try again later")
        self._waiting += 1
        try:
            right = await trio.to_thread.run_sync(
                self._check, user, password, limiter=self._threads
            )
        finally:
            self._waiting -= 1
        if not right:
            raise WrongCredentialsError("password", "the user or the password is wrong")

    def _check(self, user: str, password: bytes) -> bool:
        """Return True if the password is right.  This runs in a thread, two at a time."""
        self._read_if_changed()
        stored = self._users.get(user)
        if stored is None:
            # An unknown user takes as long as the slowest known one, so that the time tells nothing
            # of who is known, if all hashes are of one kind.
            matches(password, self._decoy)
            return False
        key = self._keyed(user, password, stored)
        with self._lock:
            known = key in self._right
        if not known and not matches(password, stored):
            return False
        with self._lock:
            self._right.pop(key, None)
            while len(self._right) >= _REMEMBERED_MAX:
                del self._right[next(iter(self._right))]
            self._right[key] = None
        return True

    def _keyed(self, user: str, password: bytes, stored: str) -> bytes:
        hashed = blake2b(key=self._secret, digest_size=32)
        for part in (user.encode(), password, stored.encode()):
            hashed.update(len(part).to_bytes(4))
            hashed.update(part)
        return hashed.digest()

    def _read_if_changed(self) -> None:
        try:
            with self._reading:
                if stamp_of(self._path) != self._stamp:
                    self._read()
                self._unreadable = False
        except (OSError, ValueError) as error:
            # The file is being replaced, or is gone.  The users that were read last count, so half
            # a file locks nobody out.
            if not self._unreadable:
                self._unreadable = True
                self._log.error(
                    "the file of users cannot be read, so the users that were read last count",
                    basic_file=str(self._path),
                    why=str(error),
                )

    def _read(self) -> None:
        """Read the file.  Raise OSError or ValueError, which never quotes a line."""
        stamp, content = read_stamped(self._path, _FILE_BYTES_MAX)
        users = parse(content.decode())
        with self._lock:
            self._users, self._stamp = users, stamp
            self._decoy = max(users.values(), key=_effort, default=_NOBODY)


def credentials_of(data: bytes) -> tuple[str, bytes]:
    """Return user and password of `user:password`.  Raise WrongCredentialsError."""
    user, colon, password = data.partition(b":")
    role = None
    if colon and len(data) <= _CREDENTIALS_BYTES_MAX:
        role = checked_role(user.decode(errors="replace"))
    if role is None:
        raise WrongCredentialsError("malformed", "the credentials are not user:password")
    return role, password


def parse(text: str) -> dict[str, str]:
    """Return the hash of each user.  Raise ValueError for a line that is not one of htpasswd."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, stored = line.partition(":")
        if not colon or not user:
            raise ValueError(f"line {number} is not user:hash")
        if not stored.startswith(_KNOWN):
            raise ValueError(
                f"line {number}: the hash of {user!r} is not one of bcrypt, apr1 and SHA: write it"
                " with `htpasswd -B`"
            )
        users[user] = stored
    return users


def matches(password: bytes, stored: str) -> bool:
    """Return True if `stored` is the hash of the password."""
    if stored.startswith(_BCRYPT):
        if len(password) > _BCRYPT_BYTES_MAX or b"\0" in password:
            return False
        try:
            return bcrypt.checkpw(password, stored.encode())
        except ValueError:
            return False  # The hash is not a whole one.
    if stored.startswith(_SHA):
        try:
            digest = base64.b64decode(stored.removeprefix(_SHA), validate=True)
        except binascii.Error:
            return False
        return compare_digest(sha1(password, usedforsecurity=False).digest(), digest)
    return apr1.matches(password, stored)


def _effort(stored: str) -> tuple[int, str]:
    """Return what tells which of two hashes takes longer to check."""
    if stored.startswith(_BCRYPT):
        return 2, stored[4:6]  # the cost, in two digits
    return (0, "") if stored.startswith(_SHA) else (1, "")
