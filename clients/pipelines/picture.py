"""A picture of a run: messages per second, and messages behind, over time.

It needs matplotlib (the extra `pictures`).  The two curves have a panel each, on white, so that the
picture can be read on light and dark pages and in print.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic  # noqa: TID251  Spark's driver has no clock of trio's
from typing import Any

from daybook.clients.pipelines.history import History
from daybook.clients.pipelines.spec import Pipeline

FORMATS = (".svg", ".png")
_EVERY_S = 60.0
_MARKED_MAX = 60  # points; more of them would be a thick line
_RATE, _BEHIND, _INK, _GRID = "#1b5e9e", "#b4460f", "#202020", "#d9d9d9"
_STYLE = {
    "svg.fonttype": "none",  # Texts stay texts.
    "svg.hashsalt": "daybook",
    "path.simplify": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


class Picture:
    """The file of a run's picture, which is replaced as a whole."""

    def __init__(self, path: Path, title: str, say: Callable[[str], None]) -> None:
        self._path = path
        self._title = title
        self._say = say
        self._due_s = monotonic() + _EVERY_S
        self._told = ""

    def update(self, history: History) -> None:
        """Write the picture if the last one is a minute old."""
        if monotonic() >= self._due_s:
            self.write(history)
            self._due_s = monotonic() + _EVERY_S

    def write(self, history: History) -> None:
        """Write the picture.  If that fails, tell so: a run does not fail for it."""
        try:
            draw(self._path, history, self._title)
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) else None
            told = f"the picture {self._path} cannot be written: {why or error}"
            if told != self._told:
                self._say(told)
            self._told = told


def title_of(pipeline: Pipeline) -> str:
    """Return the name of a pipeline, its source and its target."""
    names = ("topic", "subscribe", "subscribepattern", "assign")
    given = {name.lower(): value for name, value in pipeline.source.items()}
    source = next(given[name] for name in names if name in given)
    if pipeline.source_format == "kafka":
        source += " of Kafka"
    return f"{pipeline.name}\n{source} \u2192 {pipeline.sink.get('topic', 'the topics of rows')}"


def draw(path: Path, history: History, title: str) -> None:
    """Draw a run into a file, SVG or PNG by its name, which appears as a whole.  Raise OSError."""
    matplotlib: Any = import_module("matplotlib")
    part = path.with_name(f".{path.name}.part")
    with matplotlib.rc_context(_STYLE):
        figure: Any = import_module("matplotlib.figure").Figure(
            figsize=(8, 5), layout="constrained"
        )
        import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
        _plot(figure, history, title)
        try:
            figure.savefig(
                part,
                format=path.suffix.lower().removeprefix("."),
                dpi=150,
                facecolor="white",
                metadata={"Date": None} if path.suffix.lower() == ".svg" else None,
            )
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def _plot(figure: Any, history: History, title: str) -> None:  # noqa: ANN401  matplotlib's own
    divisor, unit = _unit(history.points[-1].at_s)
    times = [point.at_s / divisor for point in history.points]
    rates = history.rates
    known = [
        (at, p.behind) for at, p in zip(times, history.points, strict=True) if p.behind is not None
    ]
    above, below = figure.subplots(2, sharex=True)
    figure.suptitle(title, fontsize=11, parse_math=False)
    # The rate of a batch belongs to the whole time since the batch before.
    _curve(above, "rate", times, [*(rates[:1] or [0.0]), *rates], _RATE, drawstyle="steps-pre")
    _curve(below, "behind", [at for at, _ in known], [n for _, n in known], _BEHIND)
    above.set_ylabel("messages per second")
    below.set_ylabel("messages behind")
    below.set_xlabel(f"time since the start ({unit})")


def _curve(
    axes: Any,  # noqa: ANN401  matplotlib's own
    name: str,
    times: Sequence[float],
    values: Sequence[float],
    colour: str,
    **style: str,
) -> None:
    """Draw a curve; `name` is its id in an SVG file."""
    marker = "." if len(times) <= _MARKED_MAX else ""
    axes.plot(times, values, color=colour, linewidth=1.6, marker=marker, gid=name, **style)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_number)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: float, _: int | None) -> str:
    return f"{value:,.0f}" if value % 1 == 0 else f"{value:,g}"


def _unit(end_s: float) -> tuple[float, str]:
    if end_s < 180:
        return 1.0, "seconds"
    if end_s < 3 * 3600:
        return 60.0, "minutes"
    return 3600.0, "hours"
