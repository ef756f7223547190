"""The rate over time as an SVG picture, with the kill marked."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 900, 320, 80, 46, 44, 20
STEP_S = 0.25


def rates(points: Sequence[tuple[float, int]], step_s: float = STEP_S) -> list[float]:
    """Return the acknowledged messages a second in each step.

    The points are (seconds, messages acknowledged so far).
    """
    if not points:
        return []
    steps = int(points[-1][0] / step_s) + 1
    counts = [0.0] * steps
    before = 0
    for at, total in points:
        counts[min(int(at / step_s), steps - 1)] += total - before
        before = total
    return [count / step_s for count in counts]


def round_step(top: float, count_max: int = 5) -> float:
    """Return the distance of grid lines: 1, 2 or 5 times a power of ten, for `count_max` lines."""
    power = 10.0 ** math.floor(math.log10(top / count_max))
    return next(power * m for m in (1, 2, 5, 10) if power * m * count_max >= top)


def draw(
    points: Sequence[tuple[float, int]], killed_at_s: float | None, title: str, note: str
) -> str:
    """Return the picture as the text of an SVG file."""
    values = rates(points)
    duration = max(len(values) * STEP_S, STEP_S)
    top = max(values, default=1.0) * 1.1 or 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + width * seconds / duration

    def y(rate: float) -> float:
        return TOP + height * (1 - rate / top)

    corners = [f"{x(0):.1f},{y(0):.1f}"]
    for i, value in enumerate(values):
        corners += [
            f"{x(i * STEP_S):.1f},{y(value):.1f}",
            f"{x((i + 1) * STEP_S):.1f},{y(value):.1f}",
        ]
    corners.append(f"{x(duration):.1f},{y(0):.1f}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15" fill="#222">{escape(title)}</text>',
        f'<text x="{LEFT}" y="36" fill="#666">{escape(note)}</text>',
    ]
    step = round_step(top)
    for i in range(math.floor(top / step) + 1):
        rate = step * i
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(rate):.1f}" y2="{y(rate):.1f}" '
            f'stroke="#ddd"/><text x="{LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end" '
            f'fill="#444">{rate:,.0f}</text>'
        )
    marks = max(1, round(duration / 10))
    for second in range(0, int(duration) + 1, marks):
        parts.append(
            f'<text x="{x(second):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" '
            f'fill="#444">{second} s</text>'
        )
    parts.append(f'<polygon points="{" ".join(corners)}" fill="#4c78a8" fill-opacity="0.75"/>')
    if killed_at_s is not None:
        left = killed_at_s < duration / 2  # where the label goes
        parts.append(
            f'<line x1="{x(killed_at_s):.1f}" x2="{x(killed_at_s):.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM}" stroke="#d62728" stroke-width="2"/>'
            f'<text x="{x(killed_at_s) + (6 if left else -6):.1f}" y="{TOP + 14}" '
            f'text-anchor="{"start" if left else "end"}" fill="#d62728">'
            f"broker killed, {killed_at_s:.1f} s</text>"
        )
    parts.append(
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#666">acknowledged messages per second, '
        f"in steps of {STEP_S} s</text></svg>"
    )
    return "\n".join(parts) + "\n"
