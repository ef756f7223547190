"""Access to a topic: the access modes of producers, and the topic's epoch, which fences old ones.

    mode                    if there are other producers     if there are none
    shared                  joins, unless one of them is     joins
                            exclusive or waits to be
    exclusive               refused                          becomes exclusive
    wait for exclusive      waits, first come, first served  becomes exclusive
    exclusive with fencing  all others are expelled          becomes exclusive

A producer that becomes exclusive raises the topic's epoch, or names the epoch that it had before.
It is refused if that one is older than the topic's.  The epoch is stored before the producer is
admitted, so a broker that takes the topic over knows it.

A producer is a number that is never used twice.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from daybook.wire.proto import pulsar_pb2 as pb

ProducerKey: TypeAlias = int
EPOCH_MAX = 1 << 62  # A client cannot name more, so the epochs that follow fit into 63 bits.


class AccessMode(Enum):
    SHARED = pb.Shared
    EXCLUSIVE = pb.Exclusive
    WAIT_FOR_EXCLUSIVE = pb.WaitForExclusive
    EXCLUSIVE_WITH_FENCING = pb.ExclusiveWithFencing


# -- effects


@dataclass(frozen=True, slots=True)
class Admit:
    producer: ProducerKey
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Tell the producer that it is not admitted yet."""

    producer: ProducerKey


@dataclass(frozen=True, slots=True)
class Refuse:
    producer: ProducerKey
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Expel:
    """Close a producer that was admitted."""

    producer: ProducerKey


@dataclass(frozen=True, slots=True)
class StoreEpoch:
    producer: ProducerKey
    epoch: int


Effect: TypeAlias = Admit | Wait | Refuse | Expel | StoreEpoch


@dataclass(frozen=True, slots=True)
class _Candidate:
    producer: ProducerKey
    epoch: int | None


class AccessProtocol:
    """`epoch` is the topic's.  It is None if the topic never had an exclusive producer."""

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self._admitted: dict[ProducerKey, None] = {}
        self._exclusive: ProducerKey | None = None
        self._becoming: _Candidate | None = None  # while its epoch is being stored
        self._waiting: deque[_Candidate] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_exclusive(self) -> bool:
        return self._exclusive is not None

    # -- inputs

    def join(
        self, producer: ProducerKey, mode: AccessMode, epoch: int | None = None
    ) -> list[Effect]:
        """Admit a producer that asks for it, or let it wait, or refuse it.

        `epoch` is the one that it had at an earlier time as exclusive producer.
        """
        candidate = _Candidate(producer, epoch)
        occupied = bool(self._admitted or self._becoming or self._waiting)
        match mode:
            case AccessMode.SHARED:
                if self._exclusive is not None or self._becoming or self._waiting:
                    reason = "the topic has an exclusive producer"
                    return [Refuse(producer, pb.ProducerBusy, reason)]
                return self._admit(producer)
            case AccessMode.EXCLUSIVE:
                if occupied:
                    return [Refuse(producer, pb.ProducerFenced, "the topic has producers")]
                return self._become(candidate)
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if occupied:
                    self._waiting.append(candidate)
                    return [Wait(producer)]
                return self._become(candidate)
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                return self._fence(candidate)
            case _:
                assert_never(mode)

    def epoch_stored(self, producer: ProducerKey) -> list[Effect]:
        """Admit the exclusive producer whose epoch is stored."""
        becoming = self._becoming
        if becoming is None or becoming.producer != producer:
            return []  # It left, or another producer fenced it, while its epoch was being stored.
        assert not self._admitted, "an exclusive producer is alone"
        if becoming.epoch is not None:
            self.epoch = becoming.epoch
        else:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        self._becoming, self._exclusive = None, producer
        return self._admit(producer)

    def epoch_not_stored(self, producer: ProducerKey) -> list[Effect]:
        """Refuse the producer whose epoch could not be stored."""
        if self._becoming is None or self._becoming.producer != producer:
            return []
        self._becoming = None
        reason = "the epoch of the topic cannot be stored now"
        return [Refuse(producer, pb.ServiceNotReady, reason), *self._promote()]

    def left(self, producer: ProducerKey) -> list[Effect]:
        """Note that the producer is gone, in whatever state it was.

        Repeating this has no effect.
        """
        # The producer may be in any of these states, or in none if it was refused.
        self._admitted.pop(producer, None)
        self._waiting = deque(c for c in self._waiting if c.producer != producer)
        if self._exclusive == producer:
            self._exclusive = None
        if self._becoming is not None and self._becoming.producer == producer:
            self._becoming = None
        return self._promote()

    # -- decisions

    def _admit(self, producer: ProducerKey) -> list[Effect]:
        self._admitted[producer] = None
        return [Admit(producer, self.epoch)]

    def _become(self, candidate: _Candidate) -> list[Effect]:
        refused = self._refusal(candidate)
        if refused is not None:
            return [refused, *self._promote()]
        self._becoming = candidate
        epoch = candidate.epoch
        if epoch is None:
            epoch = 0 if self.epoch is None else self.epoch + 1
        return [StoreEpoch(candidate.producer, epoch)]

    def _refusal(self, candidate: _Candidate) -> Refuse | None:
        if candidate.epoch is None:
            return None
        if candidate.epoch > EPOCH_MAX:
            reason = f"no topic has had an epoch of {candidate.epoch}"
            return Refuse(candidate.producer, pb.NotAllowedError, reason)
        if self.epoch is None or candidate.epoch >= self.epoch:
            return None
        reason = f"epoch {candidate.epoch} is over, the topic is at {self.epoch}"
        return Refuse(candidate.producer, pb.ProducerFenced, reason)

    def _fence(self, candidate: _Candidate) -> list[Effect]:
        refused = self._refusal(candidate)
        if refused is not None:
            return [refused]
        # Admitted producers are told that they are closed.  The others get their answer.
        others = [c.producer for c in ([self._becoming] if self._becoming else [])]
        others += [waiting.producer for waiting in self._waiting]
        effects: list[Effect] = [Expel(producer) for producer in self._admitted]
        reason = "another producer has fenced the topic"
        effects += [Refuse(producer, pb.ProducerFenced, reason) for producer in others]
        self._admitted.clear()
        self._waiting.clear()
        self._exclusive = self._becoming = None
        return [*effects, *self._become(candidate)]

    def _promote(self) -> list[Effect]:
        """Let the producer that waits longest become exclusive, if no other one is left."""
        if self._waiting and not self._admitted and self._becoming is None:
            return self._become(self._waiting.popleft())
        return []
