"""The rules of pipes: sequence ids, records, where a pipe resumes, what it may send."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python.protocol.piping import (
    OUTPUTS_MAX,
    PipeInput,
    PipeProgress,
    PipeRecord,
    PipeStart,
    is_lost,
    output_partition,
    sequence_id,
)
from daybook.clients.python.protocol.routing import Router

GOLDEN = Path(__file__).parents[3] / "golden" / "pipe_v1" / "record.json"


def ids(*offsets: int) -> tuple[int, ...]:
    """Return the sequence id of the third output of these messages; -1 stays."""
    return tuple(-1 if each < 0 else sequence_id(each, 2) for each in offsets)


def test_sequence_ids_order_outputs_by_message_and_number() -> None:
    assert sequence_id(0, 0) == 0
    assert sequence_id(7, 3) < sequence_id(7, 4) < sequence_id(8, 0)
    for offset in (0, 1, 1 << 40):
        assert PipeStart((sequence_id(offset, 0),)).resume == offset
        assert PipeStart((sequence_id(offset, OUTPUTS_MAX - 1),)).resume == offset
    with pytest.raises(ValueError, match="outputs at most"):
        sequence_id(0, OUTPUTS_MAX)
    with pytest.raises(ValueError, match="too large"):
        sequence_id(1 << 43, 0)


def test_a_subscription_at_the_end_is_lost_only_if_there_were_outputs() -> None:
    assert is_lost(0, (5, 3), (5, 3))
    assert is_lost(0, (6, 0), (5, 3))
    assert not is_lost(0, (5, 2), (5, 3))
    assert not is_lost(-1, (5, 3), (5, 3))


def test_the_key_of_the_input_decides_the_output_partition() -> None:
    """As it does for a producer of ours, so a copy has its keys where the original has them."""
    router = Router(5)
    for key in ("a", "", "ö", b"\xff\x00", "customer-17"):
        assert output_partition(key, 3, 5) == router.for_key(key)
    assert [output_partition(None, each, 3) for each in (-1, 0, 1, 2, 3, 7)] == [0, 0, 1, 2, 0, 1]
    assert output_partition("a", 4, 1) == output_partition("a", 4, 0) == 0


def test_a_record_is_stored_as_it_was_first_written() -> None:
    record = PipeRecord("0123456789abcdef", "persistent://public/default/out", 4, 1000)
    assert record.encode() == GOLDEN.read_text().rstrip("\n")
    assert PipeRecord.decode(GOLDEN.read_text()) == record


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("version", "2"), "has version 2"),
        (("partitions", '"four"'), "cannot be read"),
        (("partitions", "-1"), "cannot be read"),
        (("window", "0"), "window"),
    ],
)
def test_a_record_that_is_not_understood_is_refused(change: tuple[str, str], problem: str) -> None:
    name, value = change
    kept = {"version": "1", "id": '"x"', "target": '"t"', "partitions": "4", "window": "9"}
    text = ",".join(f'"{each}":{it}' for each, it in {**kept, name: value}.items())
    with pytest.raises(ValueError, match=problem):
        PipeRecord.decode("{" + text + "}")
    with pytest.raises(ValueError, match="cannot be read"):
        PipeRecord.decode("[]")


def test_a_pipe_resumes_at_the_first_message_that_may_lack_outputs() -> None:
    assert PipeStart((-1, -1)).resume is None
    # The smallest of the partitions, if it is near.
    assert PipeStart(ids(50, 20, 30), window=100).resume == 20
    # A partition without outputs says nothing, but the window does.
    assert PipeStart(ids(50, -1), window=100).resume == 0
    assert PipeStart(ids(500, -1), window=100).resume == 401
    assert PipeStart(ids(500, 20), window=100).resume == 401
    # Everything before a letter is finished.
    assert PipeStart(ids(500, -1), sequence_id(450, 0), window=100).resume == 450
    assert PipeStart((-1, -1), sequence_id(450, 0), window=100).resume == 450
    assert PipeStart(ids(500, 490), sequence_id(450, 0), window=100).resume == 490


def test_finished_messages_are_told_from_begun_ones() -> None:
    start = PipeStart(ids(10, 20), sequence_id(7, 0))
    assert start.is_finished(9, 0)
    assert not start.is_finished(10, 0)
    assert start.is_finished(10, 1)
    assert not start.is_finished(20, 1)
    assert PipeStart((-1,), sequence_id(7, 0)).is_finished(7, 0)
    assert not PipeStart((-1,), sequence_id(7, 0)).is_finished(8, 0)
    assert start.is_begun(10, 0)
    assert not start.is_begun(11, 0)
    assert PipeStart((sequence_id(3, 0),)).is_begun(3, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.randoms(use_true_random=False), st.booleans())
def test_acknowledgements_follow_the_order_of_the_input(
    outputs: list[int], rng: random.Random, keep_last: bool
) -> None:
    """Outputs get their receipts in any order; a message is acknowledged behind all before it."""
    acknowledged: list[int] = []
    progress = PipeProgress(keep_last=keep_last)
    receipts: list[tuple[int, PipeInput]] = []
    left: list[int] = []

    def check() -> None:
        finished = 0
        while finished < len(left) and not left[finished]:
            finished += 1
        assert progress.finished == finished
        assert progress.under_way == len(left) - finished
        assert acknowledged == list(range(max(0, finished - keep_last)))

    def receive(number: int) -> Callable[[], None]:
        return lambda: acknowledged.append(number)

    for number, count in enumerate(outputs):
        each = progress.read(receive(number), number)
        left.append(count + 1)
        for _ in range(count):
            progress.sent(each)
            receipts.append((number, each))
        progress.complete(each)
        left[number] -= 1
        check()
        while receipts and rng.random() < 0.5:
            index, found = receipts.pop(rng.randrange(len(receipts)))
            left[index] -= 1
            progress.stored(found)
            check()
    rng.shuffle(receipts)
    for index, found in receipts:
        left[index] -= 1
        progress.stored(found)
        check()


class World:
    """Topics that store each sequence id once, and a pipe that dies at any moment.

    The transformation fails at random, another time than before for the same message.
    """

    def __init__(self, rng: random.Random, messages: int, partitions: int, window: int) -> None:
        self.rng = rng
        self.partitions = partitions
        self.window = window
        # Offsets have gaps.  Some partitions get few messages, or none.
        self.offsets = sorted(rng.sample(range(3 * messages), messages))
        weights = [rng.choice([0, 1, 10]) for _ in range(partitions)]
        weights[0] += 1
        self.places = {each: rng.choices(range(partitions), weights)[0] for each in self.offsets}
        self.counts = {each: rng.choice([0, 1, 1, 2]) for each in self.offsets}
        self.stored: list[list[int]] = [[] for _ in range(partitions)]
        self.letters: list[int] = []
        self.cursor = 0  # the first offset that is not acknowledged

    def run(self, *, to_the_end: bool) -> bool:
        """Run the pipe until it ends, or dies.  Return True if it has seen everything."""
        rng = self.rng
        outputs = tuple(each[-1] if each else -1 for each in self.stored)
        start = PipeStart(outputs, self.letters[-1] if self.letters else -1, self.window)
        if start.resume is not None:
            self.cursor = start.resume  # Wherever somebody has moved it.
        progress = PipeProgress(window=self.window)
        waiting: list[list[tuple[int, PipeInput]]] = [[] for _ in range(self.partitions)]

        def store() -> bool:
            """Have one partition store the next output.  Return False if there is none."""
            queues = [each for each in range(self.partitions) if waiting[each]]
            if not queues:
                return False
            place = rng.choice(queues)
            name, owner = waiting[place].pop(0)
            assert not self.stored[place] or self.stored[place][-1] < name
            self.stored[place].append(name)
            progress.stored(owner)
            return True

        def acknowledge(offset: int) -> None:
            self.cursor = offset + 1

        fails = 0.0 if to_the_end else rng.choice([0.0, 0.1, 0.5])
        for offset in [each for each in self.offsets if each >= self.cursor]:
            if not to_the_end and rng.random() < 0.05:
                return False
            place = self.places[offset]
            each = progress.read(partial(acknowledge, offset), offset)
            while not progress.has_room(each):
                assert store()
            if start.is_finished(offset, place):
                progress.complete(each)
                continue
            if rng.random() < fails:
                if start.is_begun(offset, place):
                    return False
                while not progress.is_alone(each):
                    assert store()
                if not to_the_end and rng.random() < 0.3:
                    return False  # The letter is lost, or was never sent.
                assert not self.letters or self.letters[-1] < sequence_id(offset, 0)
                self.letters.append(sequence_id(offset, 0))
                progress.complete(each)
                assert not progress.under_way
                continue
            for number in range(self.counts[offset]):
                name = sequence_id(offset, number)
                if name > outputs[place]:
                    progress.sent(each)
                    waiting[place].append((name, each))
            progress.complete(each)
            while rng.random() < 0.6 and store():
                pass
        if to_the_end:
            while store():
                pass
        return to_the_end

    def meddle(self) -> None:
        """Move the cursor, as somebody else may once something is stored."""
        if self.letters or any(self.stored):
            self.cursor = self.rng.choice([0, self.offsets[-1] + 1, self.cursor])

    def check(self, seed: int) -> None:
        """Each message has its outputs, or a letter, once."""
        assert len(set(self.letters)) == len(self.letters)
        for offset in self.offsets:
            wanted = [sequence_id(offset, each) for each in range(self.counts[offset])]
            place = self.stored[self.places[offset]]
            found = [each for each in place if each // OUTPUTS_MAX == offset]
            if sequence_id(offset, 0) in self.letters:
                assert not found, f"message {offset} has outputs and a letter, seed {seed}"
            else:
                assert found == wanted, f"message {offset} lacks outputs, seed {seed}"


@pytest.mark.parametrize("part", range(4))
def test_each_message_has_its_outputs_or_a_letter_once(part: int) -> None:
    """The runs are not shrunk, so a failure names the seed of its world."""
    for seed in range(part * 100, part * 100 + 100):
        rng = random.Random(seed)
        window = rng.choice([1, 2, 5, 20, 1000])
        world = World(rng, rng.randrange(1, 40), rng.randrange(1, 5), window)
        for _ in range(rng.randrange(12)):
            world.run(to_the_end=False)
            world.meddle()
        assert world.run(to_the_end=True)
        world.check(seed)
