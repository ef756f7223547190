"""Tables in documents: rows come and go by name, the text around them stays."""

from pathlib import Path

from tests import tables

HEAD = ("name", "count")


def test_rows_are_replaced_by_name_in_their_order(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"before\n{tables.BEGIN}{tables.END}\nafter\n")
    tables.update(document, HEAD, [("b", "1"), ("gone", "2")], order=["a", "b", "gone"], right=[1])
    tables.update(document, HEAD, [("a", "30"), ("b", "4")], order=["a", "b"], right=[1])
    assert document.read_text() == (
        "before\n"
        "<!-- table -->\n"
        "| name | count |\n"
        "| ---- | ----- |\n"
        "| a    |    30 |\n"
        "| b    |     4 |\n"
        "<!-- end of table -->\n"
        "after\n"
    )
    assert tables.rows_of(document) == {"a": ("a", "30"), "b": ("b", "4")}


def test_cells_may_be_empty(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"{tables.BEGIN}{tables.aligned([HEAD, ('a', '')])}{tables.END}\n")
    assert tables.rows_of(document) == {"a": ("a", "")}
