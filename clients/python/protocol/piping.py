"""The rules of a pipe, without I/O: how far it came, where it resumes, what it may send.

A pipe reads the messages of one input partition in order, sends the outputs of each, and
acknowledges a message when it and all messages before it are *finished*: all of its outputs are
stored, or it has none, or its dead letter is stored.

    sequence id of an output  =  offset of the input message * 2^20 + number of the output

So a repeat of a message has the same sequence ids, and a topic with deduplication stores none of
its outputs again.  The outputs of one message all go to one partition of the target, which only the
message and the number of partitions decide (`output_partition`).  The number is kept in the pipe's
record (`PipeRecord`).  The producers have one name in all partitions, and the target tells the last
sequence id that it has of this name in each.

The last sequence ids prove three things (`PipeStart`).  Let `L(p)` be the offset in the last
sequence id of partition `p`.

1. A message of partition `p` with an offset below `L(p)` is finished.  A run begins at or before
   the first message that is not finished, and sends the outputs for `p` in the order of their
   messages through one producer.  The broker stores them in this order.  So no output for `p` is
   stored while an earlier message for `p` lacks one.
2. Every message with an offset of `L(p) - window` or below is finished, in whichever partition: a
   pipe does not send outputs of a message while one that is so far behind it is not finished
   (`PipeProgress.has_room`).  Without this rule a partition that gets no messages would say
   nothing, and each start would process the whole input.
3. Every message up to the last dead letter is finished, and so is the message of the letter: a pipe
   sends a letter only when all earlier messages are finished, and sends nothing behind it before
   it is stored.  The rule does not depend on the transformation, which may fail only sometimes.  A
   letter that did not wait could be stored before the output of an earlier message; if that failed
   at the next start, its letter would be taken for a repeat, and the message would be lost.

So it is safe to resume at the largest of: the smallest `L(p)`, if every partition has one; the
largest `L(p) - window + 1`; the offset of the last letter.  Messages that come then and are
finished are passed over, and an output is sent only if its sequence id is above that of its
partition.  The position of the cursor counts only if nothing is stored.  It is not used otherwise,
because others can move it: by a seek, by skipping messages, by a time-to-live.

The message that was finished last stays without acknowledgement.  So the cursor of a pipe that ever
finished a message never stands at the end of its input.  If it does when the pipe starts, then the
subscription was created anew, or everything in it was skipped (`is_lost`).
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from daybook.clients.python.protocol.routing import murmur3

RECORD = "daybook.pipe"  # the property of the subscription that has the record
OUTPUTS_MAX = 1 << 20  # the limit for one message
WINDOW = 1000  # offsets between the oldest message that is not finished and the newest with outputs
_ID_MAX = (1 << 63) - 1
_VERSION = 1


def sequence_id(offset: int, number: int) -> int:
    """Return the sequence id of an output; raise ValueError if the message has too many."""
    if not 0 <= number < OUTPUTS_MAX:
        raise ValueError(f"a message has {OUTPUTS_MAX} outputs at most")
    found = offset * OUTPUTS_MAX + number
    if found > _ID_MAX:
        raise ValueError(f"the offset {offset} is too large for a sequence id")
    return found


def output_partition(key: str | bytes | None, input_partition: int, partitions: int) -> int:
    """Return the index of the partition that gets the outputs of a message.

    `key`: of the input message; a message without a key goes by its own partition, which is -1 for
    a topic without partitions.
    """
    if partitions < 2:
        return 0
    if key is None:
        return max(0, input_partition) % partitions
    data = key if isinstance(key, bytes) else key.encode()
    return (murmur3(data) & 0x7FFFFFFF) % partitions


@dataclass(frozen=True, slots=True)
class PipeRecord:
    """The facts about a pipe that must not change.  Brokers store it with its subscription."""

    identity: str  # random, so that a subscription that is created anew has another record
    target: str
    partitions: int  # how many the target has; 0 if it has none
    window: int = WINDOW

    def encode(self) -> str:
        """Return the value of the property."""
        return json.dumps(
            {
                "version": _VERSION,
                "id": self.identity,
                "target": self.target,
                "partitions": self.partitions,
                "window": self.window,
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str) -> "PipeRecord":
        """Return the record.  Raise ValueError if it is damaged or of a later version."""
        try:
            found: dict[str, Any] = json.loads(text)
            version = found["version"]
            record = cls(found["id"], found["target"], found["partitions"], found["window"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"the record of the pipe cannot be read: {text[:200]!r}") from None
        if version != _VERSION:
            raise ValueError(f"the record of the pipe has version {version}, not {_VERSION}")
        numbers = (record.partitions, record.window)
        if not all(type(each) is int for each in numbers) or record.partitions < 0:
            raise ValueError(f"the record of the pipe cannot be read: {text[:200]!r}")
        if record.window < 1:
            raise ValueError(f"the window of the pipe's record is {record.window}")
        return record


@dataclass(frozen=True, slots=True)
class PipeStart:
    """The state in which earlier runs left a pipe, for one input partition.

    `outputs`: the last sequence id of each partition of the target; `letters`: that of the dead
    letter topic.  -1 says that there is none.
    """

    outputs: tuple[int, ...]
    letters: int = -1
    window: int = WINDOW

    @property
    def last(self) -> int:
        """The largest sequence id; -1 if nothing is stored."""
        return max(*self.outputs, self.letters)

    @property
    def last_offset(self) -> int:
        """The offset of the last message of which something is stored; -1 if there is none."""
        return self.last // OUTPUTS_MAX

    @property
    def resume(self) -> int | None:
        """The offset at which it is safe to resume; None if nothing is stored."""
        if self.last < 0:
            return None
        # A partition without outputs has -1 here, which proves nothing.  A message with the last
        # output may lack further ones, so it is processed again.
        return max(
            0,
            min(self.outputs) // OUTPUTS_MAX,
            max(self.outputs) // OUTPUTS_MAX - self.window + 1,
            self.letters // OUTPUTS_MAX,
        )

    def is_finished(self, offset: int, partition: int) -> bool:
        """Return True if a message of this output partition needs no more processing."""
        return (
            sequence_id(offset, 0) <= self.letters
            or sequence_id(offset, OUTPUTS_MAX - 1) < self.outputs[partition]
        )

    def is_begun(self, offset: int, partition: int) -> bool:
        """Return True if an output of this message is stored, so that it may have no letter."""
        return sequence_id(offset, 0) <= self.outputs[partition]


def is_lost(
    last_sequence_id: int, mark_delete: tuple[int, int], end_before: tuple[int, int]
) -> bool:
    """Return True if the subscription of a pipe that made outputs has nothing left.

    `end_before` is the position of the last message of the input before the pipe subscribed.
    """
    return last_sequence_id >= 0 and mark_delete >= end_before


@dataclass(slots=True)
class PipeInput:
    """A message that was read and is not finished."""

    acknowledge: Callable[[], object]
    offset: int
    unstored: int = 0  # outputs without a receipt
    complete: bool = False  # all its outputs were sent


@dataclass(slots=True)
class PipeProgress:
    """The messages of one input partition that are not acknowledged.

    `keep_last`: the message that was finished last stays without acknowledgement.
    """

    keep_last: bool = True
    window: int = WINDOW
    finished: int = 0  # messages
    _inputs: deque[PipeInput] = field(default_factory=deque[PipeInput])
    _last: Callable[[], object] | None = None

    @property
    def under_way(self) -> int:
        """The number of messages that are read and not finished."""
        return len(self._inputs)

    def read(self, acknowledge: Callable[[], object], offset: int) -> PipeInput:
        """Note the next message; `acknowledge` is called when it is due."""
        assert not self._inputs or self._inputs[-1].offset < offset
        found = PipeInput(acknowledge, offset)
        self._inputs.append(found)
        return found

    def has_room(self, each: PipeInput) -> bool:
        """Return True if outputs of a message may be sent: rule 2."""
        return each.offset - self._inputs[0].offset < self.window

    def is_alone(self, each: PipeInput) -> bool:
        """Return True if a dead letter of a message may be sent, all before it finished: rule 3."""
        return self._inputs[0] is each

    def sent(self, each: PipeInput) -> None:
        """Note that an output of a message is under way."""
        assert not each.complete
        each.unstored += 1

    def stored(self, each: PipeInput) -> None:
        """Note the receipt of an output."""
        each.unstored -= 1
        assert each.unstored >= 0
        self._finish()

    def complete(self, each: PipeInput) -> None:
        """Note that a message has no more outputs."""
        each.complete = True
        self._finish()

    def _finish(self) -> None:
        while self._inputs and self._inputs[0].complete and not self._inputs[0].unstored:
            acknowledge = self._inputs.popleft().acknowledge
            self.finished += 1
            if not self.keep_last:
                acknowledge()
                continue
            due, self._last = self._last, acknowledge
            if due is not None:
                due()
