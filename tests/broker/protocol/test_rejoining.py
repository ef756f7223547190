"""The pauses of a broker that others remove again and again."""

from daybook.broker.protocol.rejoining import CALM_S, MOST_S, RejoinPauses


def test_pauses_grow_while_it_is_removed_and_end_when_it_has_stayed() -> None:
    pauses, now_s, waited = RejoinPauses(), 0.0, list[float]()
    for _ in range(9):
        pauses.joined(now_s)
        now_s += CALM_S - 1
        waited.append(pauses.removed(now_s))
        now_s += waited[-1]
    assert waited == [0, 1, 2, 4, 8, 16, 32, MOST_S, MOST_S]
    pauses.joined(now_s)
    assert pauses.removed(now_s + CALM_S) == 0
    pauses.joined(now_s + CALM_S)
    assert pauses.removed(now_s + CALM_S + 1) == 1
