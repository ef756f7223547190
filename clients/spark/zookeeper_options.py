"""The options for ZooKeeper, where workers look up the bookies of sealed ledgers.

Files are those of every worker.  The certificates of TLS are those of the options `tls.*`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from daybook.clients.spark.tls_options import given_tls

if TYPE_CHECKING:  # Spark's short-lived processes import this module, and not the client.
    from daybook.clients.ledgers.zookeeper import ZooKeeperOptions

ZOOKEEPER_NAMES = ("zookeeper.tls", "zookeeper.user", "zookeeper.password.file")
_TLS, _USER, _FILE = ZOOKEEPER_NAMES


def wants_tls(given: Mapping[str, str]) -> bool:
    """Return the option `zookeeper.tls`.  Raise ValueError."""
    text = given.get(_TLS, "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{_TLS}={text!r} is neither true nor false")
    return text == "true"


def parse_zookeeper(given: Mapping[str, str]) -> "ZooKeeperOptions | None":
    """Return the options, whose names are in lower case; None without any.  Raise ValueError."""
    if not any(name in given for name in ZOOKEEPER_NAMES):
        return None
    from daybook.clients.ledgers.zookeeper import ZooKeeperOptions

    user, file = given.get(_USER, ""), given.get(_FILE)
    if bool(user) != bool(file):
        raise ValueError(f"{_USER} and {_FILE} belong together: give both, or neither")
    tls = given_tls(given) if wants_tls(given) else None
    return ZooKeeperOptions(tls, user, file or None)
