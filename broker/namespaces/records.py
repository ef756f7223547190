"""The records of brokers in the metadata store: their paths and their JSON, which is Pulsar's.

    /admin/clusters/<cluster>                           ClusterData
    /admin/policies/<tenant>                            TenantInfo
    /admin/policies/<tenant>/<namespace>                Policies (`policies`)
    /admin/local-policies/<tenant>/<namespace>          {"bundles": BundlesData}: those in force
    /admin/partitioned-topics/<ns>/persistent/<topic>   PartitionedTopic; also below non-persistent
    /namespace/<ns>/<range>              ephemeral      OwnerRecord
    /loadbalance/brokers/<host:port>     ephemeral      BrokerRecord, one for each live broker; with
                                                        its load a LoadReport
    /loadbalance/leader                  ephemeral      LeaderRecord
    /counters/producer-name                             parent of sequential records
    /daybook/guards/<name>               ephemeral      GuardRecord, see `protocol.ownership`
    /daybook/instance                                   see `bookie.registry.instance`
    /daybook/tree                                       see `managed_ledger.tree`

Unknown keys are ignored when a record is read.
"""

from typing import TypeVar

import msgspec

from daybook.broker.protocol.bundles import BundleName, Bundles
from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName

CLUSTERS = "/admin/clusters"
POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
TOPIC_POLICIES = "/admin/topic-policies/local"  # PIP-469
PARTITIONED_TOPICS = "/admin/partitioned-topics"
OWNERS = "/namespace"
BROKERS = "/loadbalance/brokers"
LEADER = "/loadbalance/leader"
PRODUCER_NAMES = "/counters/producer-name"
GUARDS = "/daybook/guards"

INCARNATION = "daybook"  # the key in `BrokerRecord.protocols`


class ClusterData(msgspec.Struct, rename="camel"):
    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None


class TenantInfo(msgspec.Struct, rename="camel"):
    admin_roles: list[str] = []
    allowed_clusters: list[str] = []


class BundlesData(msgspec.Struct, rename="camel"):
    boundaries: list[str]
    num_bundles: int

    @classmethod
    def from_bundles(cls, bundles: Bundles) -> "BundlesData":
        return cls(bundles.texts(), bundles.count)


class LocalPolicies(msgspec.Struct, rename="camel"):
    bundles: BundlesData


class PartitionedTopic(msgspec.Struct, rename="camel"):
    partitions: int
    deleted: bool = False
    properties: dict[str, str] | None = None


class OwnerRecord(msgspec.Struct, rename="camel"):
    native_url: str | None  # null for a broker that has only ports with TLS
    http_url: str | None = None
    native_url_tls: str | None = None
    http_url_tls: str | None = None
    disabled: bool = False
    advertised_listeners: dict[str, object] = {}
    # The broker that takes the bundle over.  Pulsar does not know this key.
    successor: "Successor | msgspec.UnsetType" = msgspec.UNSET


class Successor(msgspec.Struct, rename="camel"):
    native_url: str | None
    http_url: str | None = None
    # Absent if it has no ports with TLS: older brokers wrote neither key.
    native_url_tls: str | msgspec.UnsetType = msgspec.UNSET
    http_url_tls: str | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def from_broker(cls, record: "BrokerRecord") -> "Successor":
        return cls(
            record.pulsar_service_url,
            record.web_service_url,
            record.pulsar_service_url_tls or msgspec.UNSET,
            record.web_service_url_tls or msgspec.UNSET,
        )

    @property
    def owner_record(self) -> OwnerRecord:
        """Return the record that it will write as the owner."""
        return OwnerRecord(
            self.native_url, self.http_url, self.native_url_tls or None, self.http_url_tls or None
        )


class BrokerRecord(msgspec.Struct, rename="camel"):
    pulsar_service_url: str | None  # null for a broker that has only ports with TLS
    web_service_url: str | None = None
    pulsar_service_url_tls: str | None = None
    web_service_url_tls: str | None = None
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = False
    start_timestamp: int = 0
    broker_version_string: str = ""
    protocols: dict[str, str] = {}

    @property
    def service_url(self) -> str:
        """Return the URL of the service port for other brokers: with TLS if there is no other."""
        return self.pulsar_service_url or self.pulsar_service_url_tls or ""

    @property
    def http_url(self) -> str | None:
        """Return the URL of the admin REST for other brokers: with TLS if there is no other."""
        return self.web_service_url or self.web_service_url_tls

    @property
    def incarnation(self) -> str | None:
        """Return the incarnation of the process; None for a broker of another project."""
        return self.protocols.get(INCARNATION)


class BundleStats(msgspec.Struct, rename="camel"):
    """The load of one bundle, as Pulsar's NamespaceBundleStats; rates are per second."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    consumer_count: int = 0
    producer_count: int = 0
    topics: int = 0
    cache_size: int = 0


class LoadReport(BrokerRecord, rename="camel"):
    """A registration with the load of its broker, as Pulsar's LocalBrokerData."""

    last_update: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    num_topics: int = 0
    num_bundles: int = 0
    num_consumers: int = 0
    num_producers: int = 0
    bundles: list[str] = []
    last_stats: dict[str, BundleStats] = {}
    load_report_type: str = "LocalBrokerData"


class LeaderRecord(msgspec.Struct, rename="camel"):
    broker_id: str
    service_url: str


class GuardRecord(msgspec.Struct, rename="camel"):
    broker_id: str
    incarnation: str
    version: int = 1
    # The INSTANCEID of the ledgers; older brokers do not announce it.
    instance: str | msgspec.UnsetType = msgspec.UNSET
    # The new formats that this broker can read (`broker.formats`).  Absent: none.
    formats: list[str] | msgspec.UnsetType = msgspec.UNSET


RecordT = TypeVar("RecordT")


def encode(record: object) -> bytes:
    return msgspec.json.encode(record)


def decode(kind: type[RecordT], value: bytes) -> RecordT:
    """Decode a record.  Raise MalformedError."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(
            f"the metadata store holds a {kind.__name__} that is not valid: {error}"
        ) from None


def owner_path(bundle: BundleName) -> str:
    return f"{OWNERS}/{bundle}"


def policies_path(namespace: str) -> str:
    return f"{POLICIES}/{namespace}"


def local_policies_path(namespace: str) -> str:
    return f"{LOCAL_POLICIES}/{namespace}"


def topic_policies_path(topic: TopicName) -> str:
    """Return the path of a topic's own policies; all its partitions share them."""
    base = topic.base
    return f"{TOPIC_POLICIES}/{base.namespace}/persistent/{base.encoded}"


def namespace_of_policies(path: str) -> str | None:
    """Return the namespace that the record of policies at this path concerns; None for others."""
    for root in (TOPIC_POLICIES, POLICIES):
        if path.startswith(f"{root}/"):
            tenant, _, rest = path.removeprefix(f"{root}/").partition("/")
            return f"{tenant}/{rest.partition('/')[0]}" if rest else None
    return None


def partitioned_parent(namespace: str, domain: str = "persistent") -> str:
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}"


def partitioned_path(topic: TopicName) -> str:
    return f"{partitioned_parent(topic.namespace, topic.domain)}/{topic.encoded}"
