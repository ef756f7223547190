"""The sums over the stats of the partitions of a topic."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

Stats: TypeAlias = Mapping[str, object]

_NOT_ADDED = (
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "oldestBacklogMessageAgeSeconds",
    "topicEpoch",
)
_NO_VALUES = (None, "", "None")  # "None" is the type of a subscription that nobody uses


def sum_stats(stats: Sequence[Stats]) -> dict[str, object]:
    """Return the sums over the stats of partitions.

    Numbers are added, except times, ages and limits, which are not sums of anything.  Subscriptions
    are merged by name, lists are concatenated.  Any other value (a name, a type, a reason) is taken
    from the first partition that has one.  Averages become the mean.
    """
    total: dict[str, object] = {}
    for one in stats:
        for key, value in one.items():
            total[key] = _add(key, total[key], value) if key in total else value
    for key in total:
        if key.lower().startswith("average") and stats:
            values = [cast("float", one.get(key, 0)) for one in stats]
            total[key] = sum(values) / len(values)
    return total


def _add(key: str, sum_: object, value: object) -> object:
    match sum_, value:
        case bool(), bool():
            return sum_ and value if key.endswith("Exact") else sum_ or value
        case (int() | float()) as left, (int() | float()) as right:
            if key.startswith("earliest"):  # a time; 0 if there is none
                return min(left, right) if left and right else left or right
            if key in _NOT_ADDED or key.startswith("last") or key.endswith("Timestamp"):
                return max(left, right)
            return left + right
        case list(), list():
            return [*cast("list[object]", sum_), *cast("list[object]", value)]
        case dict(), dict():
            return sum_stats([cast("Stats", sum_), cast("Stats", value)])
        case _:
            return value if sum_ in _NO_VALUES else sum_
