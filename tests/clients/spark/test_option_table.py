"""The table of options in docs/spark.md has what the source has, and every option has a test."""

# pyright: reportPrivateUsage=false

import re
from pathlib import Path

import pytest

from daybook.clients.spark import options

ROOT = Path(__file__).parents[3]


def documented() -> list[str]:
    page = (ROOT / "docs/spark.md").read_text()
    section = page.split("\n## Options\n")[1].split("\n### ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_the_page_has_every_option_once_and_no_other() -> None:
    assert sorted(documented()) == sorted(options._NAMES)


@pytest.mark.parametrize("name", documented())
def test_every_option_has_a_test(name: str) -> None:
    files = [
        *(ROOT / "tests/clients/spark").glob("test_*.py"),
        *(ROOT / "tests/real").glob("test_spark*.py"),
    ]
    texts = [file.read_text() for file in files if file.name != Path(__file__).name]
    # An option is given as "name": ... or name=...
    given = re.compile(rf"[\"']{re.escape(name)}[\"']|\b{re.escape(name)}=", re.IGNORECASE)
    assert any(given.search(text) for text in texts), f"no test gives the option {name}"
