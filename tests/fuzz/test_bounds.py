"""The fuzzer itself: which outcomes are findings, and which inputs are kept."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daybook.wire.errors import MalformedError, WireError
from daybook.wire.fields import decode_varint
from tests.fuzz import corpus
from tests.fuzz.bounds import FindingError, Outcome, check_memory, check_steps, examine
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, outermost, require


def target(run: Callable[[bytes], None], **bounds: int) -> Target:
    return Target(name="t", run=run, errors=(WireError,), **bounds)  # type: ignore[arg-type]


def test_a_declared_error_is_no_finding() -> None:
    def run(data: bytes) -> None:
        if data:
            raise MalformedError("no")

    assert examine(target(run), b"") is Outcome.ACCEPTED
    assert examine(target(run), b"x") is Outcome.REFUSED


class PanicError(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("x"), AssertionError(), RecursionError(), PanicError()]
)
def test_any_other_error_is_one(error: BaseException) -> None:
    def run(data: bytes) -> None:
        raise error

    with pytest.raises(FindingError) as caught:
        examine(target(run), b"")
    assert type(error).__name__ in caught.value.signature
    assert "test_bounds.py" in caught.value.signature


def test_so_is_a_promise_that_does_not_hold() -> None:
    with pytest.raises(FindingError) as caught:
        examine(target(lambda data: require(not data, "it is empty")), b"x")
    assert caught.value.signature == "it is empty"


def test_too_many_steps_are_found_also_by_who_catches_everything() -> None:
    def run(data: bytes) -> None:
        for _ in range(100):
            try:
                sum(i for i in range(data[0]))
            except Exception:
                return

    few = target(run, steps_max=2000, steps_a_byte=0)
    assert 100 < check_steps(few, b"\x01") < 2000
    with pytest.raises(FindingError, match="too many steps"):
        check_steps(few, b"\xff")


def test_too_much_memory_is_found() -> None:
    def run(data: bytes) -> None:
        bytearray(len(data) * 1000)

    little = target(run, memory_bytes_max=1 << 16, memory_a_byte=100)
    check_memory(little, bytes(10))
    with pytest.raises(FindingError, match="too much memory"):
        check_memory(little, bytes(1000))


def test_an_error_comes_out_of_its_group_if_it_is_alone_there() -> None:
    with pytest.raises(MalformedError), outermost(WireError):
        raise ExceptionGroup("", [ExceptionGroup("", [MalformedError("a")])])
    with pytest.raises(ExceptionGroup), outermost(WireError):
        raise ExceptionGroup("", [MalformedError("a"), ValueError("b")])


def test_choices_answer_also_when_nothing_is_left() -> None:
    choices = Choices(b"\x05\x03abcde")
    assert (choices.below(4), choices.blob(), bool(choices)) == (1, b"abc", True)
    assert (choices.rest(), bool(choices)) == (b"de", False)
    assert (choices.below(9), choices.flag(), choices.number(), choices.take(4)) == (
        0,
        False,
        0,
        b"",
    )


def test_the_corpus_keeps_what_reaches_something_new() -> None:
    def run(data: bytes) -> None:
        decode_varint(data)

    inputs = [b"\x01", b"\x02", b"\x80\x01", b"\x81\x81\x01", bytes(range(128, 140))]
    kept = corpus.distil(target(run), inputs)
    assert kept, "nothing reaches anything"
    assert sorted(map(len, kept)) == sorted({len(data) for data in kept}), "two reach the same"
    assert (
        corpus.distil(
            Target(name="t", run=run, errors=(WireError,), seeds=lambda: {"a": b"\x01"}), [b"\x02"]
        )
        == []
    )


def test_a_crash_is_kept_with_the_command_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CRASHES", tmp_path)
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    finding = FindingError("t", "what breaks", "how")
    file = corpus.keep_crash(target(lambda data: None), b"input", finding)
    assert file.read_bytes() == b"input"
    text = file.with_suffix(".txt").read_text()
    assert "what breaks" in text
    assert f"python -m tests.fuzz t --repeat t/{file.name}" in text
