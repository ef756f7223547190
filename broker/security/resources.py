"""The object of a request: what a right is needed on.  The module is pure."""

from dataclasses import dataclass, replace

from daybook.wire.topics import TopicName


@dataclass(frozen=True, slots=True)
class Resource:
    """The object of a request: a tenant, or something in it; nothing of them is the cluster."""

    tenant: str = ""
    namespace: str = ""  # tenant/namespace
    topic: TopicName | None = None
    subscription: str | None = None
    of_reader: bool = False  # the subscription is volatile, and its name was drawn by a client
    # A sink without topics; or, with a topic, the sink as whose topic a refusal names it, because
    # the request has not named it.
    sink: str = ""
    hidden: bool = False  # A role without the right on it is told that there is no such sink.

    @property
    def without_subscription(self) -> "Resource":
        return replace(self, subscription=None)

    def __str__(self) -> str:
        if self.sink:
            where = f"the topics of the sink {self.sink}"
        elif self.topic is not None:
            where = f"the topic {self.topic}"
        elif self.namespace:
            where = f"the namespace {self.namespace}"
        elif self.tenant:
            where = f"the tenant {self.tenant}"
        else:
            where = "the cluster"
        return where if self.subscription is None else f"{self.subscription} of {where}"


CLUSTER = Resource()


def of_topic(
    topic: TopicName, subscription: str | None = None, *, of_reader: bool = False
) -> Resource:
    tenant = topic.namespace.partition("/")[0]
    return Resource(tenant, topic.namespace, topic, subscription, of_reader)


def of_sink(sink: str, topic: TopicName) -> Resource:
    """Return a topic of a sink that a request has not named.  Refusals do not name it either."""
    return replace(of_topic(topic), sink=sink)


def of_namespace(namespace: str, subscription: str | None = None) -> Resource:
    return Resource(namespace.partition("/")[0], namespace, None, subscription)
