"""The order of each key on key_shared subscriptions."""

from dataclasses import replace
from typing import cast

import pytest

from tests.history.check import check
from tests.history.events import Deliver, Event, Seek, Subscribe, Unsubscribe
from tests.history.story import A, B, T, delivered, sent, stamp, subscribed


def keyed(seq: int, position: tuple[int, int, int], key: str, consumer: str = "c") -> Event:
    return replace(cast("Deliver", delivered(seq, position, consumer)), key=key)


def violations(*events: Event, kind: str = "key_shared") -> list[str]:
    story = [
        *subscribed(kind=kind),
        *subscribed("d", kind),
        *sent(0, A),
        *sent(1, B),
        *events,
    ]
    return [each.about for each in check(stamp(story)) if each.rule == "key-order"]


def test_a_later_entry_of_a_key_comes_later() -> None:
    assert violations(keyed(0, A, "k"), keyed(1, B, "k", "d")) == []
    assert violations(keyed(1, B, "k"), keyed(0, A, "k", "d")) == ["p/0"]


def test_entries_of_other_keys_and_those_that_come_again_may_come_in_any_order() -> None:
    assert violations(keyed(1, B, "k"), keyed(0, A, "l")) == []
    assert violations(keyed(1, B, "k"), keyed(0, A, "")) == []
    assert violations(keyed(0, A, "k"), keyed(1, B, "k"), keyed(0, A, "k", "d")) == []


@pytest.mark.parametrize(
    "event",
    [
        Seek(T, "s", 1, "earliest"),
        Unsubscribe(T, "s"),
        Subscribe(T, "s", "e", "shared", "earliest"),
        Subscribe(T, "s", "e", "key_shared", "earliest", 2),
    ],
)
def test_a_subscription_whose_order_is_not_known_is_not_checked(event: Event) -> None:
    assert violations(keyed(1, B, "k"), keyed(0, A, "k"), event) == []
    assert violations(keyed(1, B, "k"), keyed(0, A, "k"), kind="shared") == []
