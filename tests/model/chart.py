"""A run as a message sequence chart in text: a line for each step, a column for each host.

   writer      r1          b0          b1          store
1  o           |           |           |           |           appends e0
2  |-----------|-----------|---------->|           |           add 0: stored, lac -1
3  |<----------|-----------|-----------|           |           0 is stored
"""

from collections.abc import Sequence

from tests.model.search import Move

_WIDTH = 12


def draw(columns: Sequence[str], moves: Sequence[Move], end: str) -> str:
    lines = ["     " + "".join(name.ljust(_WIDTH) for name in columns).rstrip()]
    for number, move in enumerate(moves, 1):
        lines.append(f"{number:3}  {_lifelines(columns, move)}{move.text}")
    return "\n".join([*lines, f"     {end}"])


def _lifelines(columns: Sequence[str], move: Move) -> str:
    line = [" "] * (_WIDTH * len(columns))
    for column in range(len(columns)):
        line[column * _WIDTH] = "|"
    source, target = columns.index(move.source), columns.index(move.target)
    if source == target:
        line[source * _WIDTH] = "o"
        return "".join(line)
    left, right = sorted((source, target))
    for at in range(left * _WIDTH + 1, right * _WIDTH):
        if at % _WIDTH:
            line[at] = "-"
    if source < target:
        line[right * _WIDTH - 1] = ">"
    else:
        line[left * _WIDTH + 1] = "<"
    return "".join(line)
