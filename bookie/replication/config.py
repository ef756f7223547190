"""The settings of the auto-recovery process: a TOML file, overridden by the environment.

`DAYBOOK_AUTORECOVERY_RATE_BYTES_PER_S=100000000` sets `rate_bytes_per_s`.  The value of a text
setting is taken as it is, any other value is read as TOML.  An unknown key is an error.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from daybook.bookie.ledger import security
from daybook.bookie.ledger.security import BookieAccess
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.wire import settings
from daybook.wire.metadata import access
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.settings import ConfigError

_PREFIX = "DAYBOOK_AUTORECOVERY_"
_LIMITS = ReplicationLimits()

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class AutoRecoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Files in PEM form, read again when they change: the certificate with its chain, its private
    # key without a password, and the authorities that are trusted.
    tls_certificate: str = ""
    tls_key: str = ""
    tls_trusted: str = ""
    zookeeper: str = "127.0.0.1:2181"
    zookeeper_tls: bool = False  # with `tls_trusted`, and `tls_certificate` if there is one
    zookeeper_user: str = ""  # the identity for ZooKeeper (digest), with the file of its password
    zookeeper_password_file: str = ""
    ledgers_root: str = "/ledgers"
    name: str = ""  # the worker's, unique in the cluster; if empty: host-pid
    session_timeout_s: Positive = 10.0
    connect_timeout_s: Positive = 30.0  # to ZooKeeper, at the start
    exit_with_parent: bool = False  # stop when standard input ends

    # How bookies are reached: with TLS, which uses the files above, and with a password.
    bookie_tls: bool = False
    bookie_user: str = ""
    bookie_password_file: str = ""

    lost_delay_s: NotNegative = _LIMITS.lost_delay_s
    rate_bytes_per_s: Positive = _LIMITS.rate_bytes_per_s
    audit_interval_s: Positive = _LIMITS.audit_interval_s
    check_interval_s: Positive = _LIMITS.check_interval_s
    thorough: bool = _LIMITS.thorough  # the checks of all ledgers also read all copies
    fence_open_after_s: NotNegative | None = _LIMITS.fence_open_after_s

    def __post_init__(self) -> None:
        self.zookeeper_access  # noqa: B018  raises ConfigError
        if not self.zookeeper:
            raise ConfigError("zookeeper: host:port, or several with commas")
        if not self.ledgers_root.startswith("/"):
            raise ConfigError("ledgers_root: an absolute path, like /ledgers")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key belong together: name both, or neither")
        self.bookie_access.check()

    @property
    def bookie_access(self) -> BookieAccess:
        """Return how to connect to bookies, and as whom.  Raise ConfigError."""
        return security.access_of_settings(self)

    @property
    def zookeeper_access(self) -> ZooKeeperAccess:
        """Return how to connect to ZooKeeper, and as whom.  Raise ConfigError."""
        return access.access_of_settings(self)

    @property
    def limits(self) -> ReplicationLimits:
        return ReplicationLimits(
            lost_delay_s=self.lost_delay_s,
            rate_bytes_per_s=self.rate_bytes_per_s,
            audit_interval_s=self.audit_interval_s,
            check_interval_s=self.check_interval_s,
            thorough=self.thorough,
            fence_open_after_s=self.fence_open_after_s,
        )


def load(path: Path | None, environment: Mapping[str, str]) -> AutoRecoveryConfig:
    """Return the settings of the file and the environment; raise ConfigError."""
    return settings.load(AutoRecoveryConfig, _PREFIX, path, environment)
