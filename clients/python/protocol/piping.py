"""The progress of a pipe: messages that are read, sent and acknowledged, in order, without I/O.

A pipe reads the messages of one input partition in order, sends the outputs of each, and
acknowledges a message when all outputs of it and of all messages before it are stored.

    sequence id of an output  =  offset of the input message * 2^20 + number of the output

So a repeat of a message has the same sequence ids, and a topic with deduplication stores none of
its outputs again.  The last sequence id that the output topic has under the pipe's producer name
says how far the pipe came (`resume`), whatever happened to the cursor of its subscription.

The message that was finished last stays without acknowledgement.  So the cursor of a pipe that ever
finished a message never stands at the end of its input.  If it does when the pipe starts, then the
subscription was created anew: somebody deleted it, or the input topic, whose offsets now begin
again.  A pipe that went on would take new messages for repeats (`is_lost`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

OUTPUTS_MAX = 1 << 20  # the limit for one message
_ID_MAX = (1 << 63) - 1


def sequence_id(offset: int, number: int) -> int:
    """Return the sequence id of an output; raise ValueError if the message has too many."""
    if not 0 <= number < OUTPUTS_MAX:
        raise ValueError(f"a message has {OUTPUTS_MAX} outputs at most")
    found = offset * OUTPUTS_MAX + number
    if found > _ID_MAX:
        raise ValueError(f"the offset {offset} is too large for a sequence id")
    return found


def resume(last_sequence_id: int) -> int | None:
    """Return the offset of the last message with a stored output; None if there is none.

    Further outputs of this message may be missing, so it is processed again.
    """
    return None if last_sequence_id < 0 else last_sequence_id // OUTPUTS_MAX


def is_lost(
    last_sequence_id: int, mark_delete: tuple[int, int], end_before: tuple[int, int]
) -> bool:
    """Return True if the subscription of a pipe that made outputs has just been created.

    `end_before` is the position of the last message of the input before the pipe subscribed.
    """
    return last_sequence_id >= 0 and mark_delete >= end_before


@dataclass(slots=True)
class PipeInput:
    """A message that was read and is not finished."""

    acknowledge: Callable[[], object]
    unstored: int = 0  # outputs without a receipt
    complete: bool = False  # all its outputs were sent


@dataclass(slots=True)
class PipeProgress:
    """The messages of one input partition that are not acknowledged.

    `keep_last`: the message that was finished last stays without acknowledgement.
    """

    keep_last: bool = True
    finished: int = 0  # messages
    _inputs: deque[PipeInput] = field(default_factory=deque[PipeInput])
    _last: Callable[[], object] | None = None

    @property
    def under_way(self) -> int:
        """The number of messages that are read and not finished."""
        return len(self._inputs)

    def read(self, acknowledge: Callable[[], object]) -> PipeInput:
        """Note the next message; `acknowledge` is called when it is due."""
        found = PipeInput(acknowledge)
        self._inputs.append(found)
        return found

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
