"""`docs/rights.md` says what the tables of rights say."""

import re

from daybook.broker.security.rights import COMMANDS, PATHS, Right
from daybook.wire.messages.registry import type_name
from tools import rights


def test_the_page_is_up_to_date() -> None:
    rights.main(["--check"])


def test_every_right_command_and_path_is_there() -> None:
    page = rights.page()
    assert {*rights.MEANINGS} == {*Right}
    for number, right in COMMANDS.items():
        (row,) = re.findall(rf"^\| (.+) \| .*`{type_name(number)}`.*\|$", page, re.MULTILINE)
        assert row == right.value
    sections = dict(re.findall(r"^### (.+)\n\n((?:.|\n)*?)(?=\n### |\Z)", page, re.MULTILINE))
    served = [(*asked, right) for asked, right in PATHS.items() if not asked[1].endswith("/")]
    for method, path, right in served:
        of = path.replace("/non-persistent/", "/persistent/")
        root = max((each for each in rights.ROOTS if of.startswith(each)), key=len)
        said = rights._code(of.removeprefix(root))
        rows = [row.split(" | ") for row in sections[rights.ROOTS[root]].splitlines()]
        found = [
            row[0].removeprefix("| ")
            for row in rows
            if len(row) == 3
            and method in row[1].split()
            and said in row[2].removesuffix(" |").split(", ")
        ]
        assert right.value in found, (method, path)
        if said != "any other path":
            assert found == [right.value], (method, path)
