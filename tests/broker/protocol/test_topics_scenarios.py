"""Loading a topic once for all waiters, and unloading it: left the events, right the effects."""

from dataclasses import fields
from typing import Any

import pytest

from daybook.broker.protocol import topics
from daybook.broker.protocol.topics import TopicsProtocol

SCENARIOS = {
    "two who ask share one load": """
        Get t 1 True 0            -> Load t 1 True
        Get t 2 True 0            ->
        Loaded t 1                -> Give t 1 1, Give t 1 2
        Get t 3 False 0           -> Give t 1 3
    """,
    "a load that fails is told to all, and tried again by the next": """
        Get t 1 True 0            -> Load t 1 True
        Get t 2 True 0            ->
        LoadFailed t 1            -> Fail t 1 1, Fail t 1 2
        Get t 3 True 0            -> Load t 2 True
    """,
    "whoever wants it created is not told that it is not there": """
        Get t 1 False 0           -> Load t 1 False
        Get t 2 True 0            ->
        LoadFailed t 1            -> Fail t 1 1, Load t 2 True
        Loaded t 2                -> Give t 2 2
    """,
    "unloading": """
        Get t 1 True 0            -> Load t 1 True
        Loaded t 1                -> Give t 1 1
        Unload t 2                -> Close t 1
        Get t 3 True 0            -> NotNow t 3
        Unload t 4                ->
        Unloaded t 1              -> Gone 2, Gone 4
        Get t 5 True 0            -> Load t 2 True
    """,
    "unloading what is being loaded, and what is not there": """
        Unload t 1                -> Gone 1
        Get t 2 True 0            -> Load t 1 True
        Unload t 3                ->
        Loaded t 1                -> Give t 1 2, Close t 1
        Unloaded t 1              -> Gone 3
    """,
    "a load that fails is unloaded": """
        Get t 2 True 0            -> Load t 1 True
        Unload t 3                ->
        LoadFailed t 1            -> Fail t 1 2, Gone 3
    """,
    "dropping what is being loaded: what comes of it is discarded": """
        Get t 1 True 0            -> Load t 1 True
        Drop t                    -> NotNow t 1
        Get t 2 True 0            -> Load t 2 True
        Loaded t 1                -> Discard t 1
        Loaded t 2                -> Give t 2 2
    """,
    "a load that was dropped may also fail": """
        Get t 1 True 0            -> Load t 1 True
        Drop t                    -> NotNow t 1
        LoadFailed t 1            ->
    """,
    "dropping what is loaded, or being unloaded": """
        Get t 1 True 0            -> Load t 1 True
        Loaded t 1                -> Give t 1 1
        Drop t                    -> Abandon t 1
        Drop t                    ->
        Get t 2 True 0            -> Load t 2 True
        Loaded t 2                -> Give t 2 2
        Unload t 3                -> Close t 2
        Drop t                    -> Abandon t 2, Gone 3
        Unloaded t 2              ->
    """,
    "no duels: after a fence there is a pause, and a longer one after the next": """
        Get t 1 True 0            -> Load t 1 True
        Loaded t 1                -> Give t 1 1
        Drop t True 0             -> Abandon t 1
        Get t 2 True 0.09         -> NotNow t 2
        Get t 3 True 0.1          -> Load t 2 True
        LoadFailed t 2 True 0.2   -> Fail t 2 3
        Get t 4 True 0.39         -> NotNow t 4
        Get t 5 True 0.4          -> Load t 3 True
        LoadFailed t 3 True 0.5   -> Fail t 3 5
        Get t 6 True 0.99         -> NotNow t 6
        Get t 7 True 1.0          -> Load t 4 True
    """,
    "a moment without a fence forgets it": """
        Get t 1 True 0            -> Load t 1 True
        Loaded t 1                -> Give t 1 1
        Drop t True 0             -> Abandon t 1
        Get u 2 True 40           -> Load u 2 True
        Loaded u 2                -> Give u 2 2
        Drop u True 40            -> Abandon u 2
        Drop t True 50            ->
        Get t 3 True 50.09        -> NotNow t 3
        Get t 4 True 50.1         -> Load t 3 True
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


@pytest.mark.parametrize("name", SCENARIOS)
def test_topics(name: str) -> None:
    machine = TopicsProtocol()
    for line in SCENARIOS[name].strip().splitlines():
        left, _, right = line.partition("->")
        event, *words = left.split()
        effects = machine.step(getattr(topics, event)(*map(value, words)))
        assert ", ".join(map(show, effects)) == right.strip(), line
