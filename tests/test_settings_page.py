"""The tables of settings in `docs/operations.md` are those of the structs, each row explained."""

from typing import Annotated

import msgspec
import pytest

from tools import settings


def test_the_tables_of_the_page_are_up_to_date() -> None:
    settings.main(["--check"])


def test_every_setting_is_explained_in_a_sentence() -> None:
    rows = settings.ROW.findall(settings.DOCUMENT.read_text())
    known = {field for struct in settings.STRUCTS.values() for field in struct.__struct_fields__}
    meanings = [(name, meaning) for name, meaning in rows if name in known]
    assert known <= {name for name, _ in meanings}
    for name, meaning in meanings:
        assert meaning.endswith((".", ")")), name


class Example(msgspec.Struct):
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # the port
    wait_s: Annotated[float, msgspec.Meta(gt=0)] = 86_400.0
    directory: str = msgspec.field(default="")
    cache_bytes: int = 64 << 20


PAGE = "before\n<!-- example -->\n<!-- end of example -->\nafter\n"


@pytest.fixture(autouse=True)
def _example(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "example" in request.node.name:
        monkeypatch.setattr(settings, "STRUCTS", {"example": Example})


def test_an_example_is_written_with_units_bounds_and_comments() -> None:
    page = settings.up_to_date(PAGE)
    assert "| `port` | 0 | ≥ 0; ≤ 65,535 | the port |" in page
    assert "| `wait_s` | 86,400 (1 d) | seconds; > 0 |  |" in page
    assert "| `directory` | empty |  |  |" in page
    assert "| `cache_bytes` | 67,108,864 (64 MiB) | bytes |  |" in page
    assert page.startswith("before\n")
    assert page.endswith("after\n")


def test_the_last_column_of_an_example_is_kept() -> None:
    page = settings.up_to_date(PAGE).replace("| the port |", "| Where to listen. |")
    page = page.replace("| 0 | ≥ 0", "| 1 | ≥ 7")
    again = settings.up_to_date(page)
    assert "| `port` | 0 | ≥ 0; ≤ 65,535 | Where to listen. |" in again
    assert settings.unexplained(again) == ["wait_s", "directory", "cache_bytes"]


def test_an_example_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="end of example"):
        settings.up_to_date("<!-- example -->\n")
