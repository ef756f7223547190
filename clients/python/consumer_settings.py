"""How a consumer was opened, and how a broker is told so: the same on each of its partitions."""

from dataclasses import dataclass
from enum import Enum

from daybook.clients.python.limits import ConsumerLimits
from daybook.clients.python.messages import EARLIEST
from daybook.clients.python.positions import Start
from daybook.wire.proto import pulsar_pb2 as pb


class SubscriptionType(Enum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"


_SUB_TYPES = {
    SubscriptionType.EXCLUSIVE: pb.CommandSubscribe.Exclusive,
    SubscriptionType.SHARED: pb.CommandSubscribe.Shared,
    SubscriptionType.FAILOVER: pb.CommandSubscribe.Failover,
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    subscription: str
    type: SubscriptionType
    durable: bool
    start: Start  # of a new subscription: EARLIEST or LATEST; of a reader: anything
    consumer_name: str
    queue_size: int
    limits: ConsumerLimits
    ack_receipts: bool
    read_compacted: bool = False
    properties: tuple[tuple[str, str], ...] = ()

    def request(self, topic: str, consumer_id: int, epoch: int) -> pb.CommandSubscribe:
        """All but where a reader begins."""
        request = pb.CommandSubscribe(
            topic=topic,
            subscription=self.subscription,
            subType=_SUB_TYPES[self.type],
            consumer_id=consumer_id,
            consumer_name=self.consumer_name,
            durable=self.durable,
            initialPosition=pb.CommandSubscribe.Latest,
            read_compacted=self.read_compacted,
        )
        if self.start == EARLIEST:
            request.initialPosition = pb.CommandSubscribe.Earliest
        for key, value in self.properties:
            request.metadata.add(key=key, value=value)
        if self.type is not SubscriptionType.SHARED:
            request.consumer_epoch = epoch  # From 0 on, so that the broker stamps all it sends.
        return request
