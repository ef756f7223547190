"""The options of the Spark source about bookies, which workers read directly.

Paths are those of files on every worker.  The files of TLS are those of `tls.trusted` and so on.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Spark's short-lived processes import this module, and not the ledger client.
    from daybook.bookie.ledger.security import BookieAccess

BOOKIE_NAMES = ("bookie.tls", "bookie.user", "bookie.password.file")
_TLS, _USER, _PASSWORD_FILE = BOOKIE_NAMES


def uses_tls(given: Mapping[str, str]) -> bool:
    """Return True if bookies are reached with TLS.  Raise ValueError for neither yes nor no."""
    text = given.get(_TLS, "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{_TLS}={text!r} is neither true nor false")
    return text == "true"


def parse_bookie_access(given: Mapping[str, str]) -> "BookieAccess | None":
    """Return how bookies are reached; None if they have neither TLS nor passwords.

    The names of the options are in lower case.  Raise ValueError with advice.
    """
    for name in (_USER, _PASSWORD_FILE):
        if not given.get(name, "-").strip():
            raise ValueError(f"the option {name!r} is empty: give it a value, or leave it out")
    if not any(name in given for name in BOOKIE_NAMES):
        return None
    from daybook.bookie.ledger.security import BookieAccess
    from daybook.wire.settings import ConfigError

    tls = uses_tls(given)
    trusted, certificate, key = (
        given.get(f"tls.{name}") if tls else None for name in ("trusted", "certificate", "key")
    )
    user, password_file = given.get(_USER, ""), given.get(_PASSWORD_FILE)
    access = BookieAccess(tls, trusted, certificate, key, user, password_file)
    try:
        access.check()
    except ConfigError:
        raise ValueError(f"{_USER} and {_PASSWORD_FILE} belong together: give both") from None
    return access if access.tls or access.user else None
