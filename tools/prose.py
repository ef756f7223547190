"""Find sentences without a subject in docstrings, comments and Markdown pages.

    python tools/prose.py           compare the number of such sentences with the limits below
    python tools/prose.py PATH...   print each such sentence of these files or folders

A sentence has no subject if it begins with a word such as "Who", "What", "Of" or "Whether".  The
limit of a package or a page is 0, unless it is listed below; a limit can only fall.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

# The table is empty, so no folder or page may have such a sentence.  A package below `daybook/` is
# listed without that prefix.
LIMITS: dict[str, int] = {}

# These pages are printed by commands, so their sentences are those of the code.
GENERATED = re.compile(r"_pb2\.pyi?$|docs/(tree|mutants|invariants)\.md$")
READ = re.compile(r"(README|docs/.*)\.md$|.*\.py$")

NO_SUBJECT = re.compile(
    r"(?:Who|Whoever|Whom|Whose|What|Whatever|Of|Else|Whether)\b(?! course\b)"
    # "That is why" has a subject; "That which", "That the disk is full" and "That of" have none.
    r"|That (?:which|who|what|of|an?|the|its?|it's|he|they|their|there|no|nothing|nobody|none"
    r"|not|one|each|every|any|some|somebody|something|all|both|this|these|those|only)\b"
)
# A docstring or comment may begin with a small letter; its sentences after that may not.
BEGINNING = re.compile(NO_SUBJECT.pattern, re.IGNORECASE)

TOKEN = re.compile(
    r"""[rbfuRBFU]{0,2}(?:\"{3}(?P<text>(?:\\.|[^\\])*?)\"{3}|'{3}(?:\\.|[^\\])*?'{3})"""
    r"""|[rbfuRBFU]{0,2}(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|pyright:|ruff:|mypy:).*|#!.*")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)
TABLE_HEAD = re.compile(r"^[^\n]*\n(?=\s*\|[-:|\s]+\|?\s*$)", re.MULTILINE)
NEW_PARAGRAPH = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+|>\s?|#+\s+|\|)")
END_OF_SENTENCE = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[*_\"'(]*[A-Z])")
LEADING = "*_\"'( "


class Sentence(NamedTuple):
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.line}: {self.text[:100]}"


def paragraphs(text: str, line: int) -> Iterator[Sentence]:
    """Join the lines of each paragraph, list item and table cell."""
    rows: list[str] = []
    start = line
    for number, row in enumerate(text.split("\n"), line):
        if not row.strip() or NEW_PARAGRAPH.match(row):
            yield Sentence(start, " ".join(rows))
            rows, start = [], number
        if row.lstrip().startswith("|"):
            yield from (Sentence(number, cell.strip()) for cell in row.split("|"))
        elif row.strip():
            rows.append(NEW_PARAGRAPH.sub("", row, count=1).strip())
    yield Sentence(start, " ".join(rows))


def without_subject(paragraph: Sentence) -> Iterator[Sentence]:
    begins = BEGINNING
    for part in END_OF_SENTENCE.split(paragraph.text):
        sentence = part.strip(LEADING)
        if begins.match(sentence) and " " in sentence:
            yield Sentence(paragraph.line, sentence)
        begins = NO_SUBJECT


def blank(found: re.Match[str]) -> str:
    """Take the text away and keep its lines, so that later lines keep their numbers."""
    return "\n" * found[0].count("\n")


def in_markdown(text: str) -> Iterator[Sentence]:
    """Yield the sentences without a subject; a heading may ask a question."""
    for hidden in (FENCE, HIDDEN, TABLE_HEAD):
        text = hidden.sub(blank, text)
    headings = {number for number, row in enumerate(text.split("\n"), 1) if row.startswith("#")}
    for paragraph in paragraphs(text, 1):
        for found in without_subject(paragraph):
            if not (paragraph.line in headings and found.text.endswith("?")):
                yield found


def in_python(text: str) -> Iterator[Sentence]:
    """Yield the sentences without a subject of docstrings and comments."""
    for part in prose_of(text):
        for paragraph in paragraphs(part.text, part.line):
            yield from without_subject(paragraph)


def prose_of(text: str) -> Iterator[Sentence]:
    """Yield each docstring, and each comment with the comment lines that continue it."""
    line, position = 1, 0
    comment: list[str] = []
    first = last = 0
    for token in TOKEN.finditer(text):
        line += text.count("\n", position, token.start())
        position = token.start()
        before = text[text.rfind("\n", 0, position) + 1 : position]
        if token["comment"] is not None:
            said = DIRECTIVE.sub("", token["comment"]).lstrip("#:").strip()
            if comment and (line != last + 1 or before.strip()):
                yield Sentence(first, "\n".join(comment))
                comment = []
            if not comment:
                first = line
            comment.append(said)
            last = line
        elif token["text"] is not None and is_docstring(text, token.start(), token.end()):
            yield Sentence(line, token["text"])
    if comment:
        yield Sentence(first, "\n".join(comment))


def is_docstring(text: str, start: int, end: int) -> bool:
    """Return True if the string is a statement: alone on its lines, and no part of a call."""
    row_ends = text.find("\n", end)
    above = text[:start].rstrip(" \t")
    return (
        not text[end : row_ends if row_ends >= 0 else None].strip()
        and (not above or above.endswith("\n"))
        and not above.rstrip().endswith(("(", ",", "=", "[", "{", "+"))
    )


def files(names: Iterable[str] = ()) -> list[str]:
    listed = subprocess.run(  # noqa: S603
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *names],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return sorted(
        name
        for name in set(listed)
        if READ.fullmatch(name) and not GENERATED.search(name) and (ROOT / name).is_file()
    )


def found_in(name: str) -> list[Sentence]:
    text = (ROOT / name).read_text()
    return list(in_markdown(text) if name.endswith(".md") else in_python(text))


def folder(name: str) -> str:
    """Return the name under which `LIMITS` counts this file: a package, or a page of its own."""
    if name.endswith(".md"):
        return name
    parts = name.removeprefix("daybook/").split("/")
    return parts[0] if len(parts) > 1 or name == parts[0] else "daybook"


def complaints(counts: Counter[str], limits: dict[str, int]) -> Iterator[str]:
    """Compare counts with limits: more is an error, and so is a limit that is too high."""
    for name in sorted(counts.keys() | limits.keys()):
        count, limit = counts[name], limits.get(name, 0)
        if count > limit:
            yield (
                f"{name}: {count} sentences without a subject, {limit} allowed; "
                f"run python tools/prose.py {name} and rewrite the new ones"
            )
        elif count < limit:
            yield f"{name}: lower the limit in tools/prose.py to {count} (from {limit})"


def main(arguments: list[str]) -> None:
    if arguments:
        for name in files(arguments):
            for sentence in found_in(name):
                print(f"{name}:{sentence}")
        return
    counts: Counter[str] = Counter()
    for name in files():
        counts[folder(name)] += len(found_in(name))
    if wrong := list(complaints(+counts, LIMITS)):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
