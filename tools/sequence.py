"""Draw the sequence diagrams of the pages as SVG, for `make docs`.

A page has its diagram as a `mermaid` block, which code hosts draw by themselves.  The site loads no
script from elsewhere, so this hook of mkdocs draws the block while the site is built.  It knows
participants and messages (`A->>B: text`, `A-->>B: text`), and refuses everything else.
"""

import re
from html import escape
from typing import NamedTuple

BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
MESSAGE = re.compile(r"(\w+)(--?)>>(\w+): (.+)")
LANE = 150  # pixels between two participants
ROW = 34
HEAD = 52
CHARS = 20  # characters of a participant's name in one line


class Message(NamedTuple):
    source: int
    target: int
    is_answer: bool
    text: str


def parse(block: str) -> tuple[list[str], list[Message]]:
    """Return the participants and the messages; raises ValueError for what it cannot draw."""
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    if not lines or lines[0] != "sequenceDiagram":
        raise ValueError("only a sequenceDiagram can be drawn")
    names: dict[str, str] = {}
    messages: list[Message] = []
    for line in lines[1:]:
        if found := PARTICIPANT.fullmatch(line):
            names[found[1]] = found[2]
        elif (found := MESSAGE.fullmatch(line)) and {found[1], found[3]} <= set(names):
            order = list(names)
            ends = order.index(found[1]), order.index(found[3])
            messages.append(Message(*ends, found[2] == "--", found[4]))
        else:
            raise ValueError(f"this line of a diagram cannot be drawn: {line}")
    return list(names.values()), messages


def draw(block: str) -> str:
    """Return the diagram as SVG.  The colours are those of the page's text."""
    names, messages = parse(block)
    width, height = LANE * len(names), HEAD + ROW * (len(messages) + 1)
    # The page's text is at most so wide; the text of the last participant may need more room.
    longest = max((_right(each) for each in messages), default=0)
    parts = [
        f'<svg viewBox="0 0 {max(width, longest)} {height}" role="img" font-size="12"'
        ' font-family="sans-serif" fill="currentColor" stroke="none">'
    ]
    for index, name in enumerate(names):
        x = _x(index)
        parts += [
            _text(x, 14 + 14 * row, line, "middle", bold=True)
            for row, line in enumerate(_wrap(name))
        ]
        parts.append(_line(x, HEAD, x, height, "2 4"))
    for row, message in enumerate(messages):
        parts += _message(message, HEAD + ROW * (row + 1))
    return "\n".join([*parts, "</svg>"])


def on_page_markdown(markdown: str, **_: object) -> str:
    """mkdocs calls this with each page, before it makes HTML of it."""
    return BLOCK.sub(lambda found: f"<div>\n{draw(found[1])}\n</div>", markdown)


def _message(message: Message, y: int) -> list[str]:
    start, end = _x(message.source), _x(message.target)
    if message.source == message.target:  # A step of one participant has a dot, not an arrow.
        return [f'<circle cx="{start}" cy="{y - 4}" r="4"/>', _text(start + 10, y, message.text)]
    towards = 1 if end > start else -1
    tip = f"{end},{y} {end - 8 * towards},{y - 4} {end - 8 * towards},{y + 4}"
    return [
        _text(min(start, end) + 10, y - 6, message.text),
        _line(start, y, end, y, "5 4" if message.is_answer else "none"),
        f'<polygon points="{tip}"/>',
    ]


def _x(index: int) -> int:
    return LANE // 2 + LANE * index


def _right(message: Message) -> int:
    """Return the right end of the text of a message, at about seven pixels a character."""
    return _x(min(message.source, message.target)) + 10 + 7 * len(message.text)


def _wrap(name: str) -> list[str]:
    lines = [""]
    for word in name.split():
        if len(lines[-1]) + len(word) >= CHARS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _text(x: int, y: int, text: str, anchor: str = "start", *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: int, y1: int, x2: int, y2: int, dashes: str) -> str:
    ends = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {ends} stroke="currentColor" stroke-dasharray="{dashes}"/>'
