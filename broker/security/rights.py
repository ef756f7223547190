"""The right that each command of clients and each request of the REST needs: one table of each.

    OPEN         none, and no credentials either
    IDENTIFIED   any role
    LOOKUP       produce or consume on the topic
    PRODUCE      produce on the topic
    CONSUME      consume on the topic and on the subscription, or on the namespace
    STAGE        produce on every topic of the batch, and of the sink
    DECIDE       administration of the tenant of every topic of the sink
    ADMIN        administration of the tenant
    METRICS      a super user, or one of `metrics_roles`
    SUPER_USER   a super user
    BROKER       another broker, which is a super user and asks for itself

An administrator of the tenant has the first rights on everything in it, and a super user has all
but the last.  A command or a path that is missing here cannot be served: `right_of_command` and
`right_of_path` raise KeyError.
"""

from collections.abc import Iterator, Mapping
from enum import Enum

from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand


class Right(Enum):
    """The value names the right in refusals."""

    OPEN = "none"
    IDENTIFIED = "any role"
    LOOKUP = "produce or consume"
    PRODUCE = "produce"
    CONSUME = "consume"
    STAGE = "produce on the topics of the sink"
    DECIDE = "tenant admin of the topics of the sink"
    ADMIN = "tenant admin"
    METRICS = "metrics"
    SUPER_USER = "super user"
    BROKER = "broker"


ON_TOPICS = {Right.STAGE: Right.PRODUCE, Right.DECIDE: Right.ADMIN}
"""The rights about sinks, and the right that each of the topics needs.

The path of a sink names no topic.  The topics are those that the body of the request names, those
of the attempts, and those of the sink's earlier batches.  Without any, only a super user is let in.
"""

OPENED = Right.IDENTIFIED
"""The command concerns a producer, consumer or watcher that this connection has opened: its right
was checked then, and is checked again when policies change."""

COMMANDS: Mapping[int, Right] = {
    T.CONNECT: Right.OPEN,
    T.AUTH_RESPONSE: Right.OPEN,
    T.PING: Right.IDENTIFIED,
    T.PONG: Right.IDENTIFIED,
    T.LOOKUP: Right.LOOKUP,
    T.PARTITIONED_METADATA: Right.LOOKUP,
    T.GET_SCHEMA: Right.LOOKUP,
    T.GET_TOPICS_OF_NAMESPACE: Right.CONSUME,
    T.WATCH_TOPIC_LIST: Right.CONSUME,
    T.PRODUCER: Right.PRODUCE,
    T.GET_OR_CREATE_SCHEMA: Right.PRODUCE,
    T.SUBSCRIBE: Right.CONSUME,
    T.SEND: OPENED,
    T.CLOSE_PRODUCER: OPENED,
    T.ACK: OPENED,
    T.FLOW: OPENED,
    T.UNSUBSCRIBE: OPENED,
    T.CLOSE_CONSUMER: OPENED,
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: OPENED,
    T.CONSUMER_STATS: OPENED,
    T.SEEK: OPENED,
    T.GET_LAST_MESSAGE_ID: OPENED,
    T.WATCH_TOPIC_LIST_CLOSE: OPENED,
}

_ADMIN = "/admin/v2"
_NAMESPACE = f"{_ADMIN}/namespaces/{{tenant}}/{{namespace}}"
_SCHEMAS = f"{_ADMIN}/schemas/{{tenant}}/{{namespace}}/{{topic}}"
_TOPICS = (
    f"{_ADMIN}/persistent/{{tenant}}/{{namespace}}",
    f"{_ADMIN}/non-persistent/{{tenant}}/{{namespace}}",
)
_LOOKUPS = (
    "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}",
    "/lookup/v2/topic/non-persistent/{tenant}/{namespace}/{topic}",
)
_ALL = "GET POST PUT DELETE"

# Policies are read and written by administrators of the tenant.
_POLICIES_OF_NAMESPACES = """
    antiAffinity autoSubscriptionCreation autoTopicCreation backlogQuota backlogQuotaMap
    compactionThreshold deduplication deduplicationSnapshotInterval delayedDelivery dispatchRate
    dispatcherPauseOnAckStatePersistent encryptionRequired entryFilters inactiveTopicPolicies
    isAllowAutoUpdateSchema maxConsumersPerSubscription maxConsumersPerTopic maxProducersPerTopic
    maxSubscriptionsPerTopic maxTopicsPerNamespace maxUnackedMessagesPerConsumer
    maxUnackedMessagesPerSubscription messageTTL offloadDeletionLagMs offloadPolicies
    offloadThreshold offloadThresholdInSeconds persistence properties publishRate replication
    replicatorDispatchRate resourcegroup retention schemaAutoUpdateCompatibilityStrategy
    schemaCompatibilityStrategy schemaValidationEnforced subscribeRate subscriptionAuthMode
    subscriptionDispatchRate subscriptionExpirationTime subscriptionTypesEnabled
"""
_POLICIES_OF_TOPICS = """
    autoSubscriptionCreation backlogQuota backlogQuotaMap compactionThreshold deduplicationEnabled
    deduplicationSnapshotInterval delayedDelivery dispatchRate dispatcherPauseOnAckStatePersistent
    entryFilters inactiveTopicPolicies maxConsumers maxConsumersPerSubscription maxMessageSize
    maxProducers maxSubscriptionsPerTopic maxUnackedMessagesOnConsumer
    maxUnackedMessagesOnSubscription messageTTL offloadPolicies persistence publishRate
    replicatorDispatchRate retention schemaCompatibilityStrategy schemaValidationEnforced
    subscribeRate subscriptionDispatchRate subscriptionTypesEnabled
"""
# Each row: the right, the methods, and the paths below a root.
_ROOT_ROWS = (
    (Right.OPEN, "GET", "/healthz /readyz /status.html"),
    (Right.METRICS, "GET", "/metrics"),  # OPEN without authenticate_metrics
)
_ADMIN_ROWS = (
    (Right.IDENTIFIED, "GET", "/clusters /brokers/version /brokers/ready"),
    (Right.SUPER_USER, _ALL, "/clusters/{cluster}"),
    (
        Right.SUPER_USER,
        "GET",
        "/clusters/{cluster}/failureDomains /clusters/{cluster}/namespaceIsolationPolicies"
        " /clusters/{cluster}/peers",
    ),
    (Right.SUPER_USER, "GET", "/tenants"),
    (Right.ADMIN, "GET", "/tenants/{tenant}"),
    (Right.SUPER_USER, "PUT POST DELETE", "/tenants/{tenant}"),
    (Right.ADMIN, "GET", "/namespaces/{tenant}"),
    (
        Right.SUPER_USER,
        "GET",
        "/brokers /brokers/health /brokers/leaderBroker /brokers/{cluster}"
        " /brokers/{cluster}/{broker}/ownedNamespaces /brokers/configuration"
        " /brokers/configuration/values /brokers/configuration/runtime"
        " /brokers/internal-configuration /broker-stats/load-report /broker-stats/topics"
        " /broker-stats/destinations /daybook/brokers /daybook/balance"
        " /daybook/activity /daybook/quarantine /daybook/token-files",
    ),
    (Right.SUPER_USER, "POST", "/brokers/configuration/{name}/{value}"),
    (Right.SUPER_USER, "DELETE", "/brokers/configuration/{name}"),
    (Right.SUPER_USER, "POST", "/daybook/brokers/{broker}/drain"),
    (
        Right.BROKER,
        "POST DELETE",
        "/daybook/bundles/{tenant}/{namespace}/{bundle}/expect",
    ),
    (
        Right.BROKER,
        "POST",
        "/daybook/bundles/{tenant}/{namespace}/{bundle}/hold"
        " /daybook/bundles/{tenant}/{namespace}/{bundle}/pass-on"
        " /daybook/bundles/{tenant}/{namespace}/{bundle}/take",
    ),
    (Right.SUPER_USER, "GET", "/daybook/bundles/{tenant}/{namespace}"),
    (Right.SUPER_USER, "GET", "/daybook/sinks"),
    (Right.STAGE, "GET", "/daybook/sinks/{sink}"),
    (
        Right.STAGE,
        "POST",
        "/daybook/sinks/{sink}/attempts /daybook/sinks/{sink}/attempts/{attempt}/close"
        " /daybook/sinks/{sink}/commit /daybook/sinks/{sink}/abort"
        " /daybook/sinks/{sink}/roll-forward",
    ),
    (Right.STAGE, "PUT DELETE", "/daybook/sinks/{sink}/attempts/{attempt}"),
    (
        Right.DECIDE,
        "POST",
        "/daybook/sinks/{sink}/forget /daybook/sinks/{sink}/move /daybook/sinks/{sink}/resolve",
    ),
)
_NAMESPACE_ROWS = (
    (Right.ADMIN, "GET PUT DELETE", "/"),
    (Right.CONSUME, "GET", "/topics"),
    (Right.ADMIN, "GET", "/bundles"),
    (Right.ADMIN, "PUT", "/unload /{bundle}/unload /{bundle}/split"),
    (
        Right.CONSUME,
        "POST",
        "/clearBacklog/{subscription} /unsubscribe/{subscription}"
        " /{bundle}/clearBacklog/{subscription} /{bundle}/unsubscribe/{subscription}",
    ),
    # These reach the subscriptions of everybody.
    (Right.ADMIN, "POST", "/clearBacklog /{bundle}/clearBacklog"),
    (Right.ADMIN, "GET", "/permissions /permissions/subscription"),
    (
        Right.ADMIN,
        "POST DELETE",
        "/permissions /permissions/ /permissions/{role} /permissions/subscription",
    ),
    (Right.ADMIN, "POST", "/permissions/subscription/{name}"),
    (Right.ADMIN, "DELETE", "/permissions/{name}/ /permissions/{name}/{role}"),
    (Right.ADMIN, "PUT", "/property/{key}/{value}"),
    (Right.ADMIN, "GET DELETE", "/property/{key}"),
    (Right.ADMIN, _ALL, "/{policy:path}"),
    (Right.ADMIN, _ALL, " ".join(f"/{name}" for name in _POLICIES_OF_NAMESPACES.split())),
)
_TOPIC_ROWS = (
    (Right.CONSUME, "GET", "/ /partitioned"),
    (Right.ADMIN, "PUT DELETE", "/{topic}"),
    (Right.LOOKUP, "GET", "/{topic}/partitions"),
    (Right.ADMIN, "PUT POST DELETE", "/{topic}/partitions"),
    (Right.ADMIN, "PUT", "/{topic}/unload"),
    (Right.ADMIN, "GET PUT", "/{topic}/compaction"),
    (
        Right.LOOKUP,
        "GET",
        "/{topic}/stats /{topic}/internalStats /{topic}/partitioned-stats"
        " /{topic}/partitioned-internalStats /{topic}/internal-info /{topic}/explain",
    ),
    (Right.LOOKUP, "GET", "/{topic}/properties"),
    (Right.ADMIN, "PUT DELETE", "/{topic}/properties"),
    (
        Right.CONSUME,
        "GET",
        "/{topic}/lastMessageId /{topic}/messageid/{time} /{topic}/getMessageIdByIndex"
        " /{topic}/subscriptions /{topic}/examinemessage /{topic}/ledger/{ledger}/entry/{entry}"
        " /{topic}/backlog /{topic}/subscription/{subscription}/explain"
        " /{topic}/subscription/{subscription}/position/{number}",
    ),
    (Right.CONSUME, "PUT", "/{topic}/backlogSize"),
    (Right.CONSUME, "PUT DELETE", "/{topic}/subscription/{subscription}"),
    (Right.CONSUME, "GET PUT", "/{topic}/subscription/{subscription}/properties"),
    (
        Right.CONSUME,
        "POST",
        "/{topic}/subscription/{subscription}/analyzeBacklog"
        " /{topic}/subscription/{subscription}/skip/{messages}"
        " /{topic}/subscription/{subscription}/skip_all"
        " /{topic}/subscription/{subscription}/expireMessages/{seconds}"
        " /{topic}/subscription/{subscription}/expireMessages"
        " /{topic}/subscription/{subscription}/resetcursor"
        " /{topic}/subscription/{subscription}/resetcursor/{time}",
    ),
    # These reach the subscriptions of everybody.
    (Right.ADMIN, "POST", "/{topic}/all_subscription/expireMessages/{seconds} /{topic}/trim"),
    (Right.ADMIN, "DELETE", "/{topic}/truncate"),
    (Right.ADMIN, "POST", "/{topic}/terminate /{topic}/terminate/partitions"),
    (Right.BROKER, "POST", "/{topic}/sinks/admit /{topic}/sinks/apply"),
    (Right.ADMIN, "GET POST DELETE", "/{topic}/{subscription}/dispatchRate"),
    (Right.ADMIN, "GET", "/{topic}/permissions"),
    (
        Right.ADMIN,
        "POST DELETE",
        "/{topic}/permissions /{topic}/permissions/ /{topic}/permissions/{role}",
    ),
    (Right.ADMIN, _ALL, "/{topic}/{rest:path}"),
    (Right.ADMIN, _ALL, " ".join(f"/{{topic}}/{name}" for name in _POLICIES_OF_TOPICS.split())),
)
_SCHEMA_ROWS = (
    (Right.LOOKUP, "GET", "/schema /schema/{version} /schemas /metadata"),
    (Right.LOOKUP, "POST", "/compatibility /version"),
    (Right.PRODUCE, "POST", "/schema"),
    (Right.ADMIN, "DELETE", "/schema"),
)
_LOOKUP_ROWS = ((Right.LOOKUP, "GET", "/ /bundle"),)


def _rows() -> Iterator[tuple[tuple[str, str], Right]]:
    for root, table in (
        ("", _ROOT_ROWS),
        (_ADMIN, _ADMIN_ROWS),
        (_NAMESPACE, _NAMESPACE_ROWS),
        *((root, _TOPIC_ROWS) for root in _TOPICS),
        (_SCHEMAS, _SCHEMA_ROWS),
        *((root, _LOOKUP_ROWS) for root in _LOOKUPS),
    ):
        for right, methods, paths in table:
            for path in paths.split():
                for method in methods.split():
                    yield (method, root + ("" if path == "/" else path)), right


PATHS: Mapping[tuple[str, str], Right] = dict(_rows())
assert len(PATHS) == len(list(_rows())), "a path has two rights"


READS_MESSAGES = ("/position/{number}", "/examinemessage", "/ledger/{ledger}/entry/{entry}")
"""The ends of paths whose answers have the payloads of messages: the audit log notes them."""


def right_of_command(command: int) -> Right:
    return COMMANDS[command]


def right_of_path(method: str, path: str) -> Right:
    """Return the right for a method and the template of a path, such as `/tenants/{tenant}`."""
    return PATHS[method, path]
