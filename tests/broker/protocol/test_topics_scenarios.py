"""Loading a topic once for all waiters, and unloading it: left the calls, right the effects."""

from dataclasses import fields
from typing import Any

import pytest

from daybook.broker.protocol.topics import Load, NotNow, TopicsProtocol
from tests.harness.calls import call

SCENARIOS = {
    "two who ask share one load": """
        get t 1 True 0            -> Load t 1 True
        get t 2 True 0            ->
        loaded t 1                -> Give t 1 1, Give t 1 2
        get t 3 False 0           -> Give t 1 3
    """,
    "a load that fails is told to all, and tried again by the next": """
        get t 1 True 0            -> Load t 1 True
        get t 2 True 0            ->
        load_failed t 1           -> Fail t 1 1, Fail t 1 2
        get t 3 True 0            -> Load t 2 True
    """,
    "whoever wants it created is not told that it is not there": """
        get t 1 False 0           -> Load t 1 False
        get t 2 True 0            ->
        load_failed t 1           -> Fail t 1 1, Load t 2 True
        loaded t 2                -> Give t 2 2
    """,
    "unloading": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        unload t 2                -> Close t 1
        get t 3 True 0            -> NotNow t 3
        unload t 4                ->
        unloaded t 1              -> Gone 2, Gone 4
        get t 5 True 0            -> Load t 2 True
    """,
    "who comes while an idle topic is closed waits, and it is loaded again": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        rest t                    -> Close t 1
        rest t                    ->
        get t 2 False 0           ->
        get t 3 True 0            ->
        unloaded t 1              -> Load t 2 False
        load_failed t 2           -> Fail t 2 2, Load t 3 True
        loaded t 3                -> Give t 3 3
    """,
    "only creators wait for an idle topic that is closed": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        rest t                    -> Close t 1
        get t 2 True 0            ->
        unloaded t 1              -> Load t 2 True
        loaded t 2                -> Give t 2 2
    """,
    "an idle topic that is used after all stays": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        rest t                    -> Close t 1
        get t 2 False 0           ->
        kept t 1                  -> Give t 1 2
        get t 3 True 0            -> Give t 1 3
        rest t                    -> Close t 1
        unloaded t 1              ->
        kept t 1                  ->
        get t 4 True 0            -> Load t 2 True
    """,
    "an idle topic that has to leave this broker is loaded by nobody again": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        rest t                    -> Close t 1
        get t 2 True 0            ->
        unload t 3                -> NotNow t 2
        get t 4 True 0            -> NotNow t 4
        unloaded t 1              -> Gone 3
    """,
    "an idle topic that was kept is unloaded if somebody wants that": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        rest t                    -> Close t 1
        unload t 2                ->
        kept t 1                  -> Close t 1
        unloaded t 1              -> Gone 2
    """,
    "only what is loaded rests; a drop ends the waiting": """
        rest t                    ->
        get t 1 True 0            -> Load t 1 True
        rest t                    ->
        loaded t 1                -> Give t 1 1
        rest t                    -> Close t 1
        get t 2 False 0           ->
        get t 3 True 0            ->
        drop t                    -> NotNow t 2, NotNow t 3, Abandon t 1
        unloaded t 1              ->
    """,
    "unloading what is being loaded, and what is not there": """
        unload t 1                -> Gone 1
        get t 2 True 0            -> Load t 1 True
        unload t 3                ->
        loaded t 1                -> Give t 1 2, Close t 1
        unloaded t 1              -> Gone 3
    """,
    "a load that fails is unloaded": """
        get t 2 True 0            -> Load t 1 True
        unload t 3                ->
        load_failed t 1           -> Fail t 1 2, Gone 3
    """,
    "dropping what is being loaded: what comes of it is discarded": """
        get t 1 True 0            -> Load t 1 True
        drop t                    -> NotNow t 1
        get t 2 True 0            -> Load t 2 True
        loaded t 1                -> Discard t 1
        loaded t 2                -> Give t 2 2
    """,
    "a load that was dropped may also fail": """
        get t 1 True 0            -> Load t 1 True
        drop t                    -> NotNow t 1
        load_failed t 1           ->
    """,
    "dropping what is loaded, or being unloaded": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        drop t                    -> Abandon t 1
        drop t                    ->
        get t 2 True 0            -> Load t 2 True
        loaded t 2                -> Give t 2 2
        unload t 3                -> Close t 2
        drop t                    -> Abandon t 2, Gone 3
        unloaded t 2              ->
    """,
    "no duels: after a fence there is a pause, and a longer one after the next": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        drop t True 0             -> Abandon t 1
        get t 2 True 0.09         -> NotNow t 2
        get t 3 True 0.1          -> Load t 2 True
        load_failed t 2 True 0.2  -> Fail t 2 3
        get t 4 True 0.39         -> NotNow t 4
        get t 5 True 0.4          -> Load t 3 True
        load_failed t 3 True 0.5  -> Fail t 3 5
        get t 6 True 0.99         -> NotNow t 6
        get t 7 True 1.0          -> Load t 4 True
    """,
    "a moment without a fence forgets it": """
        get t 1 True 0            -> Load t 1 True
        loaded t 1                -> Give t 1 1
        drop t True 0             -> Abandon t 1
        get u 2 True 40           -> Load u 2 True
        loaded u 2                -> Give u 2 2
        drop u True 40            -> Abandon u 2
        drop t True 50            ->
        get t 3 True 50.09        -> NotNow t 3
        get t 4 True 50.1         -> Load t 3 True
    """,
}


def value(word: str) -> Any:
    if word in ("True", "False"):
        return word == "True"
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word


def show(effect: Any) -> str:
    shown = [str(getattr(effect, f.name)) for f in fields(effect) if f.name != "reason"]
    return " ".join([type(effect).__name__, *shown])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_topics(scenario: str) -> None:
    machine = TopicsProtocol()
    for line in SCENARIOS[scenario].strip().splitlines():
        left, _, right = line.partition("->")
        name, *words = left.split()
        effects = call(name, *map(value, words)).apply(machine)
        assert ", ".join(map(show, effects)) == right.strip(), line


def test_fences_that_are_long_past_are_forgotten() -> None:
    machine = TopicsProtocol()
    for number in range(1_000):
        machine.drop(f"topic-{number}", fenced=True, now_s=number * 1.0, spread=1.0)
    assert len(machine._fenced) <= 128  # pyright: ignore[reportPrivateUsage]


def test_a_fence_that_is_long_past_does_not_lengthen_the_next_back_off() -> None:
    machine = TopicsProtocol()
    for now_s in (0.0, 1.0, 1_000.0):
        machine.drop("topic", fenced=True, now_s=now_s, spread=1.0)
    assert isinstance(machine.get("topic", 1, create=False, now_s=1_000.09)[0], NotNow)
    assert isinstance(machine.get("topic", 2, create=False, now_s=1_000.11)[0], Load)


def test_many_fences_at_the_same_time_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, machine = list[float](), TopicsProtocol()

    def counts(_fenced: object, now_s: float) -> bool:
        looks.append(now_s)
        return True

    monkeypatch.setattr("daybook.broker.protocol.topics._counts", counts)
    for number in range(1_000):
        machine.drop(f"topic-{number}", fenced=True, now_s=0.0, spread=1.0)
    assert len(looks) < 2_000
