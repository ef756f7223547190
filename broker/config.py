"""The settings of a broker: a TOML file, overridden by the environment.

`DAYBOOK_BROKER_HTTP_PORT=8080` sets `http_port`, `DAYBOOK_BROKER_QUORUMS__ACK=2` sets `ack` inside
`quorums`.  A value is read as text where the setting is a text, else as TOML.  An unknown key is an
error, and so is a value of the wrong type: nothing is ignored.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import msgspec.structs

from daybook.bookie.ledger import security
from daybook.bookie.ledger.security import BookieAccess
from daybook.wire import settings
from daybook.wire.metadata import access
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.settings import ANY_ADDRESS, ConfigError

_PREFIX = "DAYBOOK_BROKER_"

OptionalPort = Annotated[int, msgspec.Meta(ge=-1, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
CompatibilityStrategy = Literal[
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]


class QuorumsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ensemble: Positive
    write: Positive
    ack: Positive


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""  # for people; host:port if empty
    host: str = "127.0.0.1"  # where to listen
    advertised_host: str = ""  # the host that others connect to; empty: `host`, or this machine
    port: OptionalPort = 6650  # 0: any free one; -1: none
    http_port: OptionalPort = 8080
    tls_port: OptionalPort = -1  # the service port with TLS
    https_port: OptionalPort = -1  # the HTTP port with TLS
    # Files in PEM form, read again when they change: the certificate with its chain, its private
    # key without a password, and the authorities that are trusted.
    tls_certificate: str = ""
    tls_key: str = ""
    tls_trusted: str = ""
    # "optional": clients may show a certificate; "required": they must; it is checked in both cases
    tls_client_certificates: Literal["off", "optional", "required"] = "off"
    # How bookies are reached: with TLS, which uses the files above, and with a password.
    bookie_tls: bool = False
    bookie_user: str = ""
    bookie_password_file: str = ""
    zookeeper: str = "127.0.0.1:2181"
    zookeeper_tls: bool = False  # with `tls_trusted`, and `tls_certificate` if there is one
    zookeeper_user: str = ""  # the identity for ZooKeeper (digest), with the file of its password
    zookeeper_password_file: str = ""
    ledgers_root: str = "/ledgers"
    cluster: str = "standalone"
    session_timeout_s: Seconds = 2.0
    exit_with_parent: bool = False  # stop when standard input ends

    # How entries are kept.  "auto": three copies, or as many as there are bookies.
    quorums: QuorumsConfig | Literal["auto"] = "auto"
    ensemble_max: Positive = 5  # the largest ensemble that a policy may ask for
    bundles: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 4  # the bundles of a new namespace
    # A namespace is not split into more bundles than this.
    namespace_bundles_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 128
    default_namespace_bundles: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16  # public/default

    # The retention of namespaces created from now on; existing ones keep their policies.
    # Acknowledged data: minutes, -1 forever; megabytes, -1 without limit; 0 and 0: not kept.
    default_retention_minutes: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)] = 7 * 24 * 60
    default_retention_mb: Annotated[int, msgspec.Meta(ge=-1)] = -1
    trim_interval_s: Seconds = 60.0
    # A topic continues in a new ledger after so many entries, or after this time.
    roll_entries: Annotated[int, msgspec.Meta(ge=1, lt=1 << 26)] = 50_000
    roll_age_s: Seconds = 4 * 3600.0
    roll_age_min_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0  # a younger ledger is not rolled
    # Bytes of the list of a topic's ledgers.  The fuller the list is, the larger and older (by
    # `roll_*`) a ledger is when it is rolled.  Above 3/4 of the bytes no ledger is rolled, above
    # 15/16 no message is accepted.
    ledger_list_bytes_max: Annotated[int, msgspec.Meta(ge=512, le=1_000_000)] = 1_000_000
    # Acknowledgements without a receipt are durable after this time.  A broker that is killed
    # delivers again at most what was acknowledged in it.
    ack_flush_s: Seconds = 1.0
    cursor_roll_records: Positive = 5_000  # then a cursor switches to a new ledger
    # A cursor with acknowledgements above mark-delete writes a snapshot of them after so many
    # changes or so many seconds.  A Pulsar broker that takes over after a crash knows those in the
    # last snapshot, and no later ones.
    cursor_snapshot_records: Positive = 1_000
    cursor_snapshot_s: Seconds = 30.0
    # A topic that nobody has used for so long leaves the memory of its broker, and its next use
    # loads it again.  0: topics stay in memory.
    topic_idle_unload_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    balance_interval_s: Seconds = 60.0  # at most one bundle moves in this time
    # A bundle moves if the loads of two brokers differ by more than this share of the mean load,
    # and by more than this load.
    balance_threshold_percent: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    balance_threshold: Annotated[float, msgspec.Meta(ge=0)] = 0.15
    balance_bundle_cool_down_s: Seconds = 600.0  # a bundle that moved stays for that long
    balance_broker_cool_down_s: Seconds = 60.0  # and so do all others of both brokers
    balance_dry_run: bool = False  # decide and write that down, but move and split nothing
    # A bundle with more topics, clients, messages or megabytes a second than this is split.
    bundle_topics_max: Positive = 1000
    bundle_clients_max: Positive = 1000
    bundle_messages_max: Positive = 30_000
    bundle_megabytes_max: Positive = 100
    # How often to search for ledgers of topics and subscriptions that no record names (after an
    # interrupted deletion, for example), and how old they have to be to be removed.
    orphan_removal: bool = True
    orphan_interval_s: Seconds = 6 * 3600.0
    orphan_age_s: Seconds = 24 * 3600.0

    # The policies below count for topics for which neither the topic nor its namespace has a value
    # of its own.  0: no limit.
    auto_create_topics: bool = True
    auto_create_partitions: NotNegative = 0  # partitions of a topic that a client creates
    auto_create_subscriptions: bool = True
    max_producers_per_topic: NotNegative = 0
    max_consumers_per_topic: NotNegative = 0
    max_consumers_per_subscription: NotNegative = 0
    max_subscriptions_per_topic: NotNegative = 0
    max_topics_per_namespace: NotNegative = 0
    # A shared consumer with so many unacknowledged messages gets no more; all consumers together.
    max_unacked_messages_per_consumer: NotNegative = 50_000
    max_unacked_messages_per_subscription: NotNegative = 200_000
    # All shared subscriptions of the broker together, 0: no limit.  When they have so many, those
    # with more than their share of it get no more until the broker has at most half of that.
    max_unacked_messages_per_broker: NotNegative = 0
    max_unacked_messages_per_subscription_on_broker_blocked: Annotated[
        float, msgspec.Meta(gt=0, le=1)
    ] = 0.16
    # Messages of all producers of one topic, and of all producers of the broker.
    publish_messages_per_s: NotNegative = 0
    publish_bytes_per_s: NotNegative = 0
    broker_publish_messages_per_s: NotNegative = 0
    broker_publish_bytes_per_s: NotNegative = 0
    # Deliveries to all consumers of one topic, and to those of one subscription.
    dispatch_messages_per_s: NotNegative = 0
    dispatch_bytes_per_s: NotNegative = 0
    subscription_dispatch_messages_per_s: NotNegative = 0
    subscription_dispatch_bytes_per_s: NotNegative = 0
    subscribes_per_consumer: NotNegative = 0  # One consumer subscribes so often in the period.
    subscribes_period_s: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] = 30
    message_ttl_s: NotNegative = 0  # a subscription loses messages that are older
    subscription_expiry_minutes: NotNegative = 0  # without a consumer, then it is deleted
    # The largest and the oldest backlog of a subscription, -1 without limit, and what happens then.
    backlog_quota_bytes: Annotated[int, msgspec.Meta(ge=-1)] = -1
    backlog_quota_age_s: Annotated[int, msgspec.Meta(ge=-1)] = -1
    backlog_quota_policy: Literal[
        "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
    ] = "producer_request_hold"
    delete_inactive_topics: bool = False
    inactive_topic_mode: Literal[
        "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
    ] = "delete_when_no_subscriptions"
    inactive_topic_s: Positive = 60
    policy_check_interval_s: Seconds = 60.0  # ages, backlogs and unused topics
    compaction_threshold_bytes: NotNegative = 0  # compact a topic when it has grown by so much
    schema_compatibility_strategy: CompatibilityStrategy = "FULL"
    schema_auto_update_allowed: bool = True  # Producers may bring new schemas.
    schema_validation_enforced: bool = False  # Producers without a schema are refused.
    # Store each message of a producer once, even if it is sent again (by producer name and sequence
    # id).  A policy of the namespace or of the topic overrides this.
    deduplication: bool = False
    # Compaction by key.  A run remembers so many keys at most, about 160 bytes each.
    compaction_keys_max: Positive = 2_000_000
    compaction_bytes_per_s: Positive = 32 << 20  # read by all runs together
    compaction_retain_keyless: bool = False  # keep messages without a key, too
    # Key_shared subscriptions spread keys by consistent hashing, with so many points for each
    # consumer.  With 0, a newcomer gets half of the largest range of hashes instead.
    key_shared_points: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    partitions_max: Positive = 1024  # the partitions of one topic
    schema_versions_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000  # one topic
    schema_bytes_max: Annotated[int, msgspec.Meta(ge=1 << 10, le=4 << 20)] = (
        1 << 20
    )  # the largest one

    max_message_size: Positive = 5 * 1024 * 1024  # less if not all bookies accept it with headers
    metrics_topics_max: NotNegative = 2_000  # With more loaded, metrics are sums by namespace.
    connections_max: Positive = 10_000  # fewer if the limit of open files leaves less room
    connections_per_address_max: NotNegative = 0  # those of one address; 0: no limit
    connections_per_role_max: NotNegative = 0  # those of one role; super users have no limit
    producers_per_role_max: NotNegative = 0  # on this broker; super users have no limit
    consumers_per_role_max: NotNegative = 0
    http_connections_max: Positive = 256  # in addition; the oldest idle one is closed to make room
    connect_timeout_s: Seconds = 10.0  # from the connection to its CONNECT
    connect_bytes_max: Annotated[int, msgspec.Meta(ge=1 << 10)] = 64 << 10  # the frame of CONNECT
    frame_stall_s: Seconds = 5.0  # half a frame may wait so long for its next byte
    frame_bytes_per_s: Positive = 16 << 10  # half a frame needs so much, over 30 s
    # Receive buffers of all connections together.
    arena_bytes_max: Annotated[int, msgspec.Meta(ge=1 << 20)] = 256 << 20
    keep_alive_s: Seconds = 30.0
    start_timeout_s: Seconds = 10.0  # to reach the metadata store
    shutdown_timeout_s: Seconds = 60.0
    http_body_bytes_max: Positive = 1 << 20

    # The ways in which clients may prove who they are.  Empty: nobody is asked.
    authentication: tuple[Literal["token", "basic", "tls"], ...] = ()
    # The key of tokens: a file, a URL file: or data:, or base64.
    token_secret_key: str = ""
    token_public_key: str = ""
    # Further keys whose tokens count, ten in all.  Files are read again when they change.
    token_secret_keys: tuple[str, ...] = ()
    token_public_keys: tuple[str, ...] = ()
    revoked_tokens_file: str = ""  # tokens that are refused although they are right
    token_role_claim: str = "sub"  # noqa: S105
    token_audience: str = ""  # empty: tokens for any audience are accepted
    oidc_issuers: tuple[str, ...] = ()  # URLs of OpenID Connect issuers whose tokens are accepted
    oidc_audience: str = ""
    oidc_role_claim: str = "sub"
    basic_file: str = ""  # an htpasswd file
    certificate_roles: dict[str, str] = {}  # by common name; empty: the common name is the role
    anonymous_role: str = ""  # clients without credentials get it; empty: they are refused
    # Roles may do only what they were granted.
    authorization: bool = False
    super_users: tuple[str, ...] = ()  # roles that may do everything
    authorization_wildcards: bool = False  # rights of `abc*` and `*abc` count for such roles
    proxy_roles: tuple[str, ...] = ()  # may ask for other roles
    # How long a client may take to renew credentials that have expired.
    auth_refresh_s: Seconds = 60.0
    broker_token_file: str = ""  # the token by which this broker introduces itself to others
    audit_file: str = ""  # JSON lines: who did what, and was it allowed; empty: not written
    # A full file is renamed to FILE.1, and so on; 0: never, because another program does that.
    audit_file_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 100 << 20
    audit_files_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10
    # `/metrics`, which names topics, needs credentials; "auto": if authorization is on
    authenticate_metrics: bool | Literal["auto"] = "auto"
    metrics_roles: tuple[str, ...] = ()  # with authorization, they may read `/metrics`, too
    # refuse to start with a port without TLS, and to call other brokers without it
    require_tls: bool = False

    # A subscription that sends nothing for that long, although it has messages and a consumer with
    # permits, is logged and counted as stalled.
    dispatch_stalled_s: Seconds = 5.0

    # End the process, with exit code 4, if its own port has not answered for that long and another
    # broker serves; but not before it has run for `watchdog_quiet_s`.
    watchdog: bool = True
    watchdog_silent_s: Seconds = 60.0
    watchdog_quiet_s: Seconds = 600.0

    def __post_init__(self) -> None:
        quorums = self.quorums
        if isinstance(quorums, QuorumsConfig) and not (
            quorums.ensemble >= quorums.write >= quorums.ack
        ):
            raise ConfigError(
                f"quorums: ensemble >= write >= ack must hold, but they are {quorums.ensemble},"
                f" {quorums.write} and {quorums.ack}"
            )
        if isinstance(quorums, QuorumsConfig) and quorums.ensemble > self.ensemble_max:
            raise ConfigError(
                f"quorums: the ensemble of {quorums.ensemble} is larger than ensemble_max"
                f" ({self.ensemble_max}): raise ensemble_max"
            )
        if (self.default_retention_minutes == 0) != (self.default_retention_mb == 0):
            raise ConfigError(
                "default_retention_minutes and default_retention_mb must both be 0, or neither"
            )
        if self.arena_bytes_max < 4 * self.max_message_size:
            raise ConfigError(
                f"arena_bytes_max: {self.arena_bytes_max} bytes hold fewer than four messages of"
                " max_message_size; raise it, or lower max_message_size"
            )
        self.bookie_access.check()
        self._check_tls()
        self._check_security()
        self.zookeeper_access  # noqa: B018  raises ConfigError
        if not self.zookeeper:
            raise ConfigError("zookeeper is empty: write host:port, or several separated by commas")

    def _check_tls(self) -> None:
        if self.require_tls and (self.port >= 0 or self.http_port >= 0):
            raise ConfigError(
                "require_tls forbids ports without TLS: set port = -1 and http_port = -1"
            )
        if self.port < 0 and self.tls_port < 0:
            raise ConfigError("port and tls_port are both -1: clients need one of them")
        if not self.tls_certificate or not self.tls_key:
            if self.tls_port >= 0 or self.https_port >= 0:
                raise ConfigError(
                    "tls_port and https_port need tls_certificate and tls_key: name the files of"
                    " the certificate and of its private key"
                )
            if self.tls_certificate or self.tls_key:
                raise ConfigError(
                    "tls_certificate and tls_key belong together: name both, or neither"
                )
        if self.tls_client_certificates != "off" and not self.tls_trusted:
            raise ConfigError(
                f'tls_client_certificates is "{self.tls_client_certificates}": name the file of the'
                " authorities that sign the certificates of clients in tls_trusted"
            )

    def _check_security(self) -> None:
        methods = self.authentication
        keys = [self.token_secret_key, self.token_public_key]
        keys += [*self.token_secret_keys, *self.token_public_keys]
        if not all(keys[2:]):
            raise ConfigError("token_secret_keys and token_public_keys must not name an empty key")
        if self.revoked_tokens_file and "token" not in methods:
            raise ConfigError('revoked_tokens_file needs "token" in authentication')
        for method, names, given in (
            (
                "token",
                "a key (token_secret_key or token_public_key, or several: token_secret_keys,"
                " token_public_keys) or oidc_issuers",
                any(keys) or bool(self.oidc_issuers),
            ),
            ("basic", "basic_file", bool(self.basic_file)),
        ):
            if given != (method in methods):
                raise ConfigError(
                    f'authentication = ["{method}"] needs {names}, and nothing else uses them: set'
                    " both, or neither"
                )
        if self.certificate_roles and "tls" not in methods:
            raise ConfigError('certificate_roles needs "tls" in authentication')
        if bool(self.oidc_issuers) != bool(self.oidc_audience):
            raise ConfigError(
                "oidc_issuers needs oidc_audience, and the other way round: an issuer makes tokens"
                " for other services, too"
            )
        for issuer in self.oidc_issuers:
            if not issuer.startswith("https://"):
                raise ConfigError(f"oidc_issuers: {issuer!r} has to begin with https://")
        if self.audit_file and not methods:
            raise ConfigError("audit_file needs authentication: without it nobody has a role")
        if self.authenticate_metrics is True and not methods:
            raise ConfigError(
                "authenticate_metrics needs authentication: without it nobody has a role"
            )
        for name in ("connections", "producers", "consumers"):
            if getattr(self, f"{name}_per_role_max") and not methods:
                raise ConfigError(
                    f"{name}_per_role_max needs authentication: without it nobody has a role"
                )
        if self.metrics_roles and not self.authorization:
            raise ConfigError("metrics_roles needs authorization: without it all roles may read")
        if self.authorization and not methods:
            raise ConfigError("authorization needs authentication: without it nobody has a role")
        if self.authorization and not self.super_users:
            raise ConfigError(
                "authorization needs super_users: without one, nobody could grant a right"
            )
        if self.anonymous_role in self.super_users:
            raise ConfigError("anonymous_role must not be one of super_users")
        if self.anonymous_role and not methods:
            raise ConfigError("anonymous_role needs authentication: without it nobody has a role")
        if self.anonymous_role in self.proxy_roles:
            raise ConfigError("anonymous_role must not be one of proxy_roles")

    @property
    def prefers_tls(self) -> bool:
        """Return True if other brokers are called with TLS where they have a port for it."""
        return bool(self.tls_trusted) or self.require_tls

    @property
    def metrics_need_credentials(self) -> bool:
        asked = self.authenticate_metrics
        return self.authorization if asked == "auto" else asked

    @property
    def bookie_access(self) -> BookieAccess:
        """Return how to connect to bookies, and as whom.  Raise ConfigError."""
        return security.access_of_settings(self)

    @property
    def public_host(self) -> str:
        return self.advertised_host or self.host

    @property
    def shown_name(self) -> str:
        """Return the name of the broker for people: `name`, or the address that clients use."""
        port = self.port if self.port >= 0 else self.tls_port
        return self.name or f"{self.public_host}:{port}"

    @property
    def zookeeper_access(self) -> ZooKeeperAccess:
        """Return how to connect to ZooKeeper, and as whom.  Raise ConfigError."""
        return access.access_of_settings(self)


def load(path: Path | None, environment: Mapping[str, str]) -> BrokerConfig:
    """Return the settings in the file and the environment.  Raise ConfigError."""
    return settings.load(BrokerConfig, _PREFIX, path, environment)


def with_advertised_host(config: BrokerConfig, find: Callable[[], str | None]) -> BrokerConfig:
    """Return settings that name a host to which others can connect.

    `find` returns the name or address of this machine; it is asked only if the broker listens on
    all addresses and the settings name no host.  Raise ConfigError if it knows none.
    """
    if config.host not in ANY_ADDRESS or config.advertised_host:
        return config
    found = find()
    if found is None:
        raise ConfigError(
            f"host is {config.host}, to which nobody can connect, and this machine knows no address"
            " by which others reach it: set advertised_host to that name or address"
        )
    return msgspec.structs.replace(config, advertised_host=found)


def parse(values: Mapping[str, object]) -> BrokerConfig:
    """Return the settings in `values`.  Raise ConfigError."""
    return settings.parse(BrokerConfig, values)
