"""Write the tables of settings in `docs/operations.md`.

    python -m tools.settings            write the tables
    python -m tools.settings --check    exit with 1 if the page is not up to date

Names, defaults and allowed values come from the structs of the settings.  The last column of a row
explains the setting; it is written by hand in the page and kept.  A new setting begins with the
comment at its field.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import msgspec
import msgspec.structs

from daybook.bookie.replication.config import AutoRecoveryConfig
from daybook.bookie.server.config import BookieConfig
from daybook.broker.config import BrokerConfig

DOCUMENT = Path(__file__).parents[1] / "docs" / "operations.md"
STRUCTS: Mapping[str, type[msgspec.Struct]] = {
    "broker settings": BrokerConfig,
    "bookie settings": BookieConfig,
    "auto-recovery settings": AutoRecoveryConfig,
}
HEAD = "| setting | default | unit, allowed values | meaning |\n|---|---|---|---|\n"
ROW = re.compile(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", re.MULTILINE)
COMMENT = re.compile(r"^    (\w+): .*?  # (.+)$", re.MULTILINE)
UNITS = {
    "_bytes_per_s": "bytes a second",
    "_messages_per_s": "messages a second",
    "_s": "seconds",
    "_minutes": "minutes",
    "_mb": "megabytes",
    "_bytes": "bytes",
    "_bytes_max": "bytes",
    "_message_size": "bytes",
}
LARGER = {
    "seconds": ((86_400, "d"), (3600, "h"), (60, "min")),
    "minutes": ((1440, "d"),),
    "bytes": ((1 << 20, "MiB"), (1 << 10, "KiB")),
}
BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}"}


def unit_of(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def number(value: float) -> str:
    """Write a number as people read it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if abs(value) >= 10_000 else str(value)


def readable(value: object, unit: str) -> str:
    """Write a default, and large amounts once more in larger units."""
    if value is msgspec.NODEFAULT:
        return "must be set"
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if not isinstance(value, int | float):
        return f"`{value}`" if value else "empty"
    return f"{number(value)}{larger(value, unit)}"


def larger(value: float, unit: str) -> str:
    for size, name in LARGER.get(unit.removesuffix(" a second"), ()):
        if value >= size and value % size == 0:
            return f" ({number(value / size)} {name})"
    return ""


def allowed(kind: object) -> Iterator[str]:
    """Yield the choices and bounds of a field."""
    if get_origin(kind) is Literal:
        yield ", ".join(f"`{each}`" for each in get_args(kind))
    elif get_origin(kind) is Annotated:
        for meta in get_args(kind)[1:]:
            bounds = [(text, getattr(meta, name, None)) for name, text in BOUNDS.items()]
            yield from (text.format(number(bound)) for text, bound in bounds if bound is not None)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield ", ".join(f"`{each.name}`" for each in msgspec.structs.fields(kind))
    else:
        for part in get_args(kind):
            yield from allowed(part)


def table(struct: type[msgspec.Struct], meanings: Mapping[str, str]) -> str:
    """Return the table of one struct; `meanings` has the last column, by setting."""
    comments = dict(COMMENT.findall(inspect.getsource(struct)))
    rows: list[str] = []
    for field in msgspec.structs.fields(struct):
        unit = unit_of(field.name)
        values = "; ".join(filter(None, [unit, *allowed(field.type)]))
        meaning = meanings.get(field.name) or comments.get(field.name, "")
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        shown = readable(default, unit)
        rows.append(f"| `{field.name}` | {shown} | {values} | {meaning.strip()} |\n")
    return HEAD + "".join(rows)


def up_to_date(page: str) -> str:
    """Return the page with new tables between the markers."""
    for name, struct in STRUCTS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        old, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"the page has no lines {begin.strip()} and {end}")
        page = before + begin + table(struct, dict(ROW.findall(old))) + end + after
    return page


def unexplained(page: str) -> list[str]:
    """Return the settings whose row does not say what they mean."""
    return [name for name, meaning in ROW.findall(page) if not meaning.strip()]


def main(arguments: list[str]) -> None:
    page = DOCUMENT.read_text()
    new = up_to_date(page)
    if arguments == ["--check"]:
        if new != page:
            sys.exit("docs/operations.md is not up to date: run python -m tools.settings")
    elif arguments:
        sys.exit("usage: python -m tools.settings [--check]")
    else:
        DOCUMENT.write_text(new)
    if missing := unexplained(new):
        sys.exit(f"docs/operations.md: explain {', '.join(missing)} in the last column")


if __name__ == "__main__":
    main(sys.argv[1:])
