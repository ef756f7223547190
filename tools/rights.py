"""Write `docs/rights.md`: the right that each command and each request needs.

    python -m tools.rights            write the page
    python -m tools.rights --check    exit with 1 if the page is not up to date

The page comes from `broker.security.rights`, whose tables brokers obey.  Nothing in it is written
by hand, but for the sentences below.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from daybook.broker.security.rights import COMMANDS, PATHS, Right
from daybook.wire.messages.registry import type_name

DOCUMENT = Path(__file__).parents[1] / "docs" / "rights.md"
MEANINGS: Mapping[Right, str] = {
    Right.OPEN: "Everybody, also without credentials.",
    Right.IDENTIFIED: "Any role.",
    Right.LOOKUP: "A role with `produce` or `consume` on the topic.",
    Right.PRODUCE: "A role with `produce` on the topic. System topics need a super user.",
    Right.CONSUME: "A role with `consume` on the topic, and with the use of the subscription if the"
    " request names one. If the request names a namespace alone, `consume` on that.",
    Right.STAGE: "A role with `produce` on every topic of the batch, and of the sink.",
    Right.DECIDE: "An admin of the tenant of every topic of the sink.",
    Right.ADMIN: "An admin of the tenant.",
    Right.METRICS: "A super user, or one of `metrics_roles`. With `authenticate_metrics = false`,"
    " everybody.",
    Right.SUPER_USER: "A super user.",
    Right.BROKER: "Another broker: a super user that asks for itself, and not for another role.",
}
ROOTS: Mapping[str, str] = {
    "/admin/v2/namespaces/{tenant}/{namespace}": "Namespaces",
    "/admin/v2/persistent/{tenant}/{namespace}": "Topics",
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}": "Schemas",
    "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}": "Lookups",
    "/admin/v2": "Clusters, tenants, brokers and sinks",
    "": "Health and metrics",
}
_HEAD = """# Rights of requests

This page lists the right that each command of a client and each request of the admin REST needs,
with [`authorization = true`](security.md#the-rights-of-a-client). A broker does not serve what is
not in here. `python -m tools.rights` writes this page from the tables that brokers obey.

## The rights

A super user has all rights, and an admin of the tenant has those on everything in the tenant. Other
roles are granted `produce` and `consume`.

| right | who has it |
|---|---|
"""
_COMMANDS = """
## Commands of clients

A command about a producer, consumer or watcher that the connection has opened needs any role: the
right was checked when it was opened, and is checked again when rights change. A `PRODUCER` that
creates a subscription needs `consume`, too.

| right | commands |
|---|---|
"""
_REQUESTS = """
## Requests of the REST

Words in capitals stand for names. A HEAD needs what the GET needs.
"""


def page() -> str:
    return "".join((_HEAD, *_rights(), _COMMANDS, *_commands(), _REQUESTS, *_requests()))


def _rights() -> Iterator[str]:
    for right in Right:
        yield f"| {right.value} | {MEANINGS[right]} |\n"


def _commands() -> Iterator[str]:
    for right in Right:
        names = [f"`{type_name(number)}`" for number, needs in COMMANDS.items() if needs is right]
        if names:
            yield f"| {right.value} | {', '.join(names)} |\n"


def _requests() -> Iterator[str]:
    rows: dict[str, dict[tuple[Right, str], list[str]]] = {root: {} for root in ROOTS}
    for (path, right), methods in _methods().items():
        root = max((each for each in ROOTS if path.startswith(each)), key=len)
        rows[root].setdefault((right, " ".join(methods)), []).append(path.removeprefix(root))
    for root, title in ROOTS.items():
        where = f" below `{_shown(root)}`" if root else ""
        yield f"\n### {title}\n\nThese are the paths{where}.\n"
        if "/persistent/" in root:
            yield "Topics that are not persistent need the same rights, below `non-persistent`.\n"
        yield "\n| right | methods | paths |\n|---|---|---|\n"
        order = sorted(rows[root].items(), key=lambda row: [*Right].index(row[0][0]))
        for (right, asked), paths in order:
            yield f"| {right.value} | {asked} | {', '.join(map(_code, paths))} |\n"


def _methods() -> Mapping[tuple[str, Right], list[str]]:
    """Return the methods of each path that need the same right; persistent topics stand for all."""
    found: dict[tuple[str, Right], list[str]] = {}
    for (method, path), right in PATHS.items():
        # A path that ends with the role, which is empty, is there to be refused.
        if "/non-persistent/" not in path and not path.endswith("/"):
            found.setdefault((path, right), []).append(method)
    return found


def _shown(path: str) -> str:
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: found[1].upper(), path)


def _code(path: str) -> str:
    if path.endswith(":path}"):
        return "any other path"
    return f"`{_shown(path)}`" if path else "the path itself"


def main(arguments: list[str]) -> None:
    new = page()
    if arguments == ["--check"]:
        if not DOCUMENT.exists() or new != DOCUMENT.read_text():
            sys.exit("docs/rights.md is not up to date: run python -m tools.rights")
    elif arguments:
        sys.exit("usage: python -m tools.rights [--check]")
    else:
        DOCUMENT.write_text(new)


if __name__ == "__main__":
    main(sys.argv[1:])
