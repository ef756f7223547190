"""The settings of a bookie: a TOML file, overridden by the environment.

`DAYBOOK_BOOKIE_HTTP_PORT=8000` sets `http_port`.  A value is read as text if the setting is text,
otherwise as TOML (`DAYBOOK_BOOKIE_DIRECTORIES='["/d0", "/d1"]'`).  An unknown key is an error, and
so is a value of the wrong type: no setting is ignored.

The id of the bookie (`bookie_id`) is decided once, at the first start: host:port unless it is set
here.  From then on its directories hold the id, and another id here is an error.  So a bookie keeps
its identity when its port changes; its registration says where it can be reached.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from daybook.bookie.ledger import security
from daybook.bookie.ledger.racks import RACK_PROPERTY
from daybook.bookie.ledger.security import BookieAccess
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.server.entrance import Mode
from daybook.bookie.server.session import ServerLimits
from daybook.bookie.storage.limits import StoreLimits
from daybook.wire import settings
from daybook.wire.messages.blocks import BLOCKS_PROPERTY
from daybook.wire.messages.bookie import FRAME_BYTES_PROPERTY
from daybook.wire.metadata import access
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.settings import ANY_ADDRESS, ConfigError

_PREFIX = "DAYBOOK_BOOKIE_"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
OptionalPort = Annotated[int, msgspec.Meta(ge=-1, le=65535)]
Bytes = Annotated[int, msgspec.Meta(ge=1 << 20)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Interval = Annotated[float, msgspec.Meta(ge=0)]
Rack = Annotated[str, msgspec.Meta(pattern=r"^\S*$")]
BookieId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9:_.\-]*$")]

_LIMITS = ServerLimits()
_STORE_LIMITS = StoreLimits()
_REPLICATION = ReplicationLimits()


class BookieConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    directories: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # each has its own index
    bookie_id: BookieId = ""
    host: str = "127.0.0.1"  # the address to listen on
    advertised_host: str = ""  # the address that clients connect to; `host` if empty
    rack: Rack = ""  # the failure domain of this bookie; copies are spread over racks
    port: Port = 3181  # 0: any free port
    http_port: OptionalPort = 0  # metrics and health; 0: any free port; -1: none
    https_port: OptionalPort = -1  # the same with TLS
    # START_TLS on the port of the bookie.  "required": nothing else is taken from a peer without.
    tls: Literal["off", "optional", "required"] = "off"
    # Files in PEM form, read again when they change: the certificate with its chain, its private
    # key without a password, and the authorities that are trusted.
    tls_certificate: str = ""
    tls_key: str = ""
    tls_trusted: str = ""
    # "optional": clients may show a certificate; "required": they must; it is checked in both cases
    tls_client_certificates: Literal["off", "optional", "required"] = "off"
    # "permit" lets clients without credentials in and counts them; "require" refuses them.
    authentication: Mode = "off"
    authentication_force: bool = False  # start with "require" even if it may lock clients out
    users_file: str = ""  # users and hashes of passwords, as `htdigest` writes them
    # Certificates that let their owners in: by common name, or by a role in the unit (OU).
    allowed_certificates: tuple[str, ...] = ()
    allowed_certificate_roles: tuple[str, ...] = ()
    # How this bookie reaches other ones, to copy entries.
    bookie_tls: bool = False
    bookie_user: str = ""
    bookie_password_file: str = ""
    zookeeper: str = "127.0.0.1:2181"
    zookeeper_tls: bool = False  # with `tls_trusted`, and `tls_certificate` if there is one
    zookeeper_user: str = ""  # the identity for ZooKeeper (digest), with the file of its password
    zookeeper_password_file: str = ""
    ledgers_root: str = "/ledgers"
    session_timeout_s: Seconds = 10.0
    connect_timeout_s: Seconds = 30.0  # to ZooKeeper, at the start
    sync: Literal["always", "deferred"] = "always"  # deferred: answers plain adds before a sync
    cookie_repair: Literal["off", "auto"] = "off"  # auto: start with empty directories, and copy
    exit_with_parent: bool = False  # stop when standard input ends

    read_cache_bytes: Bytes = _STORE_LIMITS.log.reading.windows_bytes_max  # for all directories
    reclaim_interval_s: Interval = 120.0  # between garbage collections; 0: only on request
    reclaim_bytes_per_s: Bytes = int(_STORE_LIMITS.reclaim.bytes_per_s)  # read, and written
    scrub_interval_s: Interval = 24 * 3600.0  # between scrubs; 0: only on request
    position_interval_s: Seconds = 10.0  # a younger image of the same start may go unnoticed
    scrub_bytes_per_s: Bytes = int(_STORE_LIMITS.scrub_bytes_per_s)

    autorecovery: bool = True  # also audit when elected, and restore lost copies
    lost_bookie_delay_s: Interval = _REPLICATION.lost_delay_s  # unless ZooKeeper says otherwise
    replication_bytes_per_s: Bytes = int(_REPLICATION.rate_bytes_per_s)

    blocks: bool = True  # announce that writers may send many entries in one frame

    connections_max: Positive = _LIMITS.connections_max  # fewer if few files may be open
    http_connections_max: Positive = 256  # in addition to those
    frame_bytes_max: Bytes = _LIMITS.frame_bytes_max
    arena_bytes_max: Bytes = _LIMITS.arena_bytes_max
    add_bytes_max: Bytes = _LIMITS.add_bytes_max
    answer_bytes_max: Bytes = _LIMITS.answer_bytes_max
    idle_timeout_s: Seconds = _LIMITS.idle_timeout_s
    newcomer_arena_bytes_max: Bytes = _LIMITS.newcomer_arena_bytes_max  # shared by all newcomers
    frame_stall_s: Seconds = _LIMITS.frame_stall_s  # longest wait for a byte within a frame
    frame_bytes_per_s: Positive = _LIMITS.frame_bytes_per_s  # minimum within a frame, over 30 s

    def __post_init__(self) -> None:
        self.zookeeper_access  # noqa: B018  raises ConfigError
        if not self.zookeeper:
            raise ConfigError("zookeeper: host:port, or several with commas")
        if self.host in ANY_ADDRESS and not self.advertised_host:
            raise ConfigError(
                f"host is {self.host}, where nobody can connect to: set advertised_host to the name"
                " or address by which others reach this machine"
            )
        if not self.ledgers_root.startswith("/"):
            raise ConfigError("ledgers_root: an absolute path, like /ledgers")
        if len(set(self.directories)) != len(self.directories):
            raise ConfigError("directories: one is named twice")
        if self.bookie_id == "readonly":
            raise ConfigError("bookie_id: readonly is the name of something else in ZooKeeper")
        if self.arena_bytes_max < 4 * self.frame_bytes_max:
            raise ConfigError("arena_bytes_max: at least four frames must fit")
        self._check_tls()
        self._check_authentication()

    def _check_tls(self) -> None:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key belong together: name both, or neither")
        if not self.tls_certificate and (self.tls != "off" or self.https_port >= 0):
            raise ConfigError(
                "tls and https_port need tls_certificate and tls_key: name the files of the"
                " certificate and of its private key"
            )
        if self.tls_client_certificates != "off" and not self.tls_trusted:
            raise ConfigError(
                f'tls_client_certificates is "{self.tls_client_certificates}": name the file of the'
                " authorities that sign the certificates of clients in tls_trusted"
            )
        if self.tls == "required" and not self.bookie_tls:
            raise ConfigError(
                'tls = "required" needs bookie_tls = true: bookies copy entries from each other'
            )
        if self.tls_client_certificates == "required" and not self.bookie_tls:
            raise ConfigError(
                'tls_client_certificates = "required" needs bookie_tls = true: bookies copy entries'
                " from each other"
            )

    def _check_authentication(self) -> None:
        self.bookie_access.check()
        certificates = bool(self.allowed_certificates or self.allowed_certificate_roles)
        if certificates and (self.tls == "off" or self.tls_client_certificates == "off"):
            raise ConfigError(
                "allowed_certificates and allowed_certificate_roles need tls and"
                " tls_client_certificates: without them nobody shows a certificate"
            )
        if (self.authentication == "off") == bool(self.users_file or certificates):
            raise ConfigError(
                "authentication needs users_file, allowed_certificates or"
                " allowed_certificate_roles, and nothing else uses them: set both, or neither"
            )
        shows = self.bookie_tls and self.tls_certificate and certificates
        if self.authentication == "require" and not (self.bookie_user or shows):
            raise ConfigError(
                'authentication = "require" needs bookie_user and bookie_password_file, or'
                " bookie_tls with an allowed certificate: bookies copy entries from each other"
            )

    @property
    def bookie_access(self) -> BookieAccess:
        """Return how to connect to bookies, and as whom.  Raise ConfigError."""
        return security.access_of_settings(self)

    @property
    def public_host(self) -> str:
        return self.advertised_host or self.host

    @property
    def zookeeper_access(self) -> ZooKeeperAccess:
        """Return how to connect to ZooKeeper, and as whom.  Raise ConfigError."""
        return access.access_of_settings(self)

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties that the registration has besides the address."""
        rack = {RACK_PROPERTY: self.rack} if self.rack else {}
        frames = {FRAME_BYTES_PROPERTY: str(self.frame_bytes_max)}
        blocks = {BLOCKS_PROPERTY: "1"} if self.blocks else {}
        return {**blocks, **frames, **rack}

    @property
    def replication_limits(self) -> ReplicationLimits:
        return ReplicationLimits(
            lost_delay_s=self.lost_bookie_delay_s, rate_bytes_per_s=self.replication_bytes_per_s
        )

    @property
    def store_limits(self) -> StoreLimits:
        reclaim = replace(_STORE_LIMITS.reclaim, bytes_per_s=self.reclaim_bytes_per_s)
        log = _STORE_LIMITS.log
        share = max(4 * log.reading.window_bytes, self.read_cache_bytes // len(self.directories))
        return StoreLimits(
            log=replace(log, reading=replace(log.reading, windows_bytes_max=share)),
            reclaim=reclaim,
            scrub_bytes_per_s=self.scrub_bytes_per_s,
            ack_early=self.sync == "deferred",
        )

    @property
    def limits(self) -> ServerLimits:
        return ServerLimits(
            connections_max=self.connections_max,
            frame_bytes_max=self.frame_bytes_max,
            arena_bytes_max=self.arena_bytes_max,
            add_bytes_max=self.add_bytes_max,
            answer_bytes_max=self.answer_bytes_max,
            idle_timeout_s=self.idle_timeout_s,
            newcomer_arena_bytes_max=self.newcomer_arena_bytes_max,
            frame_stall_s=self.frame_stall_s,
            frame_bytes_per_s=self.frame_bytes_per_s,
        )


def load(path: Path | None, environment: Mapping[str, str]) -> BookieConfig:
    """Return the settings in the file and the environment.  Raise ConfigError."""
    return settings.load(BookieConfig, _PREFIX, path, environment)


def parse(values: Mapping[str, object]) -> BookieConfig:
    """Return the settings in `values`.  Raise ConfigError."""
    return settings.parse(BookieConfig, values)
