"""The stats of a partitioned topic: sums over those of its partitions."""

from collections.abc import Mapping, Sequence
from typing import cast

Stats = Mapping[str, object]


def sum_stats(stats: Sequence[Stats]) -> dict[str, object]:
    """Numbers are added, subscriptions merged by name, lists put behind each other.

    What is neither (a name, a type) is taken from the first that has it; averages are not added.
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
            if key.startswith("last") or key.endswith("Timestamp"):
                return max(left, right)
            return left + right
        case list(), list():
            return [*cast("list[object]", sum_), *cast("list[object]", value)]
        case dict(), dict():
            return sum_stats([cast("Stats", sum_), cast("Stats", value)])
        case _:
            return sum_
