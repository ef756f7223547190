"""The keys whose tokens a broker accepts, and the tokens that it refuses all the same.

Keys and the list of revoked tokens stand in files that are read again when they have changed: at
each token that is verified, and once a second.  A secret that is being written counts only when it
has stayed as it is for a moment.  A file that cannot be used keeps its former keys or its former
list.  The log says so once, and a metric shows it until the file is right again.

    a token that has been verified is    its key was removed      renewed, as one that expires
                                         it was revoked           cut off at once
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import trio

from daybook.broker.security import revoked
from daybook.broker.security.identity import Identity
from daybook.broker.security.keys import (
    KEY_BYTES_MAX,
    TokenKey,
    path_of,
    public_keys,
    read_key,
    secret_keys,
)
from daybook.broker.security.revoked import Revoked
from daybook.broker.security.tokens import REVOKED, ClaimRules, Tokens, WrongCredentialsError
from daybook.wire.changing_files import ChangingFile
from daybook.wire.logging import Log
from daybook.wire.settings import ConfigError

KEYS_MAX = 10
LOOK_S = 1.0
SETTLE_S = 1.5  # A changed secret counts when it has stayed for so long: half of one is one, too.


class Standing(Enum):
    """The force of a token that was verified earlier."""

    GOOD = auto()
    KEY_REMOVED = auto()
    REVOKED = auto()


@dataclass(frozen=True, slots=True, repr=False)
class KeyPlace:
    """A place of keys, as a setting names it: a file, a URL, or base64."""

    setting: str
    place: str
    secret: bool

    def parse(self, content: bytes) -> tuple[TokenKey, ...]:
        return secret_keys(content) if self.secret else public_keys(content)


class TokenTrust:
    """One instance per broker."""

    def __init__(
        self, places: Sequence[KeyPlace], revoked_file: str, rules: ClaimRules, log: Log
    ) -> None:
        """Read all files.  Raise ConfigError, which names the setting."""
        self.changed = trio.Event()  # set when keys or the list have changed; then renewed
        self._log = log
        self._rules = rules
        self._fixed: list[tuple[TokenKey, ...]] = []  # keys that stand in the settings themselves
        self._key_files: dict[str, ChangingFile[tuple[TokenKey, ...]]] = {}
        self._list: ChangingFile[Revoked] | None = None
        self._told: dict[str, str] = {}  # problems of which the log knows, by file
        self._refused = ""  # why the keys that the files have now are not in force
        for each in places:
            self._read_place(each)
        if revoked_file:
            try:
                self._list = ChangingFile(Path(revoked_file), revoked.FILE_BYTES_MAX, revoked.parse)
            except (OSError, ValueError) as error:
                raise ConfigError(f"revoked_tokens_file {revoked_file}: {error}") from None
        keys = self._present_keys()
        if why := _why_not(keys) if places else "":
            raise ConfigError(why)
        self._use(keys)

    def _read_place(self, each: KeyPlace) -> None:
        try:
            path = path_of(each.place)
            if path is None:
                self._fixed.append(each.parse(read_key(each.place)))
            else:
                self._key_files[str(path)] = ChangingFile(
                    path, KEY_BYTES_MAX, each.parse, settle_s=SETTLE_S if each.secret else 0.0
                )
        except OSError as error:
            raise ConfigError(
                f"{each.setting}: the key file {error.filename} cannot be read: {error.strerror}"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{each.setting}: {error}") from None

    def _present_keys(self) -> tuple[TokenKey, ...]:
        places = [*self._fixed, *(each.value for each in self._key_files.values())]
        return tuple(dict.fromkeys(key for keys in places for key in keys))

    def _use(self, keys: tuple[TokenKey, ...]) -> None:
        self._tokens = Tokens(keys, self._rules) if keys else None
        algorithms = sorted({name for key in keys for name in key.algorithms})
        self._log.info("tokens may be signed with", algorithms=" ".join(algorithms))
        self._ids = frozenset(key.id for key in keys)

    @property
    def revoked(self) -> Revoked:
        return Revoked() if self._list is None else self._list.value

    @property
    def has_files(self) -> bool:
        return bool(self._key_files) or self._list is not None

    @property
    def problems(self) -> dict[str, str]:
        """Return for each file why its present content is not in force, "" if it is."""
        found = {name: each.problem or self._refused for name, each in self._key_files.items()}
        if self._list is not None:
            found[str(self._list.path)] = self._list.problem
        return found

    def verify(self, token: str, now_s: float) -> Identity:
        """Return the identity that a token of these keys proves.  Raise WrongCredentialsError."""
        if self._tokens is None:
            raise WrongCredentialsError("issuer", "the token is of an issuer that is not known")
        return self._tokens.verify(token, now_s)

    def check(self, identity: Identity) -> None:
        """Raise WrongCredentialsError if the token that has proven this identity is revoked."""
        if self.revoked.covers(identity):
            raise WrongCredentialsError(REVOKED, "the token was revoked")

    def standing(self, identity: Identity) -> Standing:
        """Return what has become of the token that has proven this identity."""
        if self.revoked.covers(identity):
            return Standing.REVOKED
        token = identity.token
        if token is None or token.key is None or token.key in self._ids:
            return Standing.GOOD
        return Standing.KEY_REMOVED

    def look(self, *, retry: bool = False) -> None:
        """Read the files that have changed; with `retry` also those that could not be used."""
        changed = [each.look(retry=retry) for each in self._key_files.values()]
        if any(changed):
            self._exchange(self._present_keys())
        if self._list is not None and self._list.look(retry=retry):
            self._log.info(
                "the list of revoked tokens has changed and is in force", lines=len(self.revoked)
            )
            self.changed.set()
        self._tell_problems()

    def _exchange(self, keys: tuple[TokenKey, ...]) -> None:
        self._refused = _why_not(keys)
        if self._refused:
            return
        self._use(keys)
        self._log.info("the keys of tokens have changed and are in force", keys=len(keys))
        self.changed.set()

    def _tell_problems(self) -> None:
        """Log each new problem once."""
        for file, problem in self.problems.items():
            if problem and problem != self._told.get(file):
                self._log.error(
                    "a changed file about tokens cannot be used, so its former content stays in"
                    " force",
                    file=file,
                    why=problem,
                )
            self._told[file] = problem

    async def wait_changed(self) -> None:
        """Return when keys or the list have changed, a second after the change at the latest."""
        while not self.changed.is_set():
            if not self.has_files:
                await trio.sleep_forever()
            with trio.move_on_after(LOOK_S):
                await self.changed.wait()
            self.look(retry=True)
        self.changed = trio.Event()


def _why_not(keys: Sequence[TokenKey]) -> str:
    """Return why these keys of tokens cannot be in force; "" if they can."""
    if len(keys) > KEYS_MAX:
        return f"there are {len(keys)} keys of tokens, and {KEYS_MAX} at most may be set"
    return "" if keys else "no key of tokens is left: each place says none"
