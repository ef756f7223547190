"""`tools/prose.py` finds sentences without a subject and compares their number with limits."""

from collections import Counter

import pytest

from tools import prose


@pytest.mark.parametrize(
    "sentence",
    [
        "Who may produce to a topic.",
        "Whoever asks is a number.",
        "Whom the broker told.",
        "Whose entry it is.",
        "What an administrator can do.",
        "Whatever is left.",
        "Of one client.",
        "Else the broker closes it.",
        "Whether it had another life.",
        "That which is left.",
        "That the disk is full is told once.",
        "What is a bundle?",
    ],
)
def test_a_sentence_without_a_subject_is_found_where_it_begins(sentence: str) -> None:
    texts = [
        f'"""Write an entry.  {sentence}"""\n',
        f'def write():\n    """Write an entry.\n\n    {sentence}\n    """\n',
        f'class Entry:\n    size: int\n    """{sentence}"""\n',
        f"x = 1  # {sentence}\n",
        f"# The entry is written.\n# {sentence}\nx = 1\n",
        f"#: {sentence}\nx = 1\n",
    ]
    for text in texts:
        found = list(prose.in_python(text))
        assert [each.text for each in found] == [sentence], text
        assert [each.line for each in prose.in_markdown(f"A page.\n\n* {sentence}\n")] == [3]


@pytest.mark.parametrize(
    "sentence",
    [
        "That is why the bookie waits.",
        "That bookie is gone.",
        "Of course the bookie waits.",
        "Whatsoever is a word.",
        "The broker knows what it is told, of whom, and whether it is true.",
        "The broker (What else?) answers.",
        "What",  # the head of a column
    ],
)
def test_a_sentence_with_a_subject_is_not_found(sentence: str) -> None:
    assert not list(prose.in_python(f'"""{sentence}"""\n'))
    assert not list(prose.in_markdown(sentence))


def test_a_sentence_may_begin_in_the_middle_of_a_line_and_go_on_in_the_next() -> None:
    text = '"""The bookie stops\nwhat it does.  Whether\nit starts again is open."""\n'
    assert [each.text for each in prose.in_python(text)] == ["Whether it starts again is open."]


def test_a_small_letter_begins_a_comment_but_no_later_sentence() -> None:
    assert list(prose.in_python("x = 1  # of one client\n"))
    assert not list(prose.in_python("x = 1  # The client, i.e. of one broker\n"))


def test_strings_and_directives_are_not_prose() -> None:
    assert not list(prose.in_python('print("What is left: # Who")\n'))
    assert not list(prose.in_python('run(\n    """What is left."""\n)\n'))
    assert not list(prose.in_python('text = """What is left."""\n'))
    assert not list(prose.in_python("x = 1  # noqa: S101 what is left\n"))


def test_a_heading_may_ask_and_code_is_not_read() -> None:
    page = "# What is a ledger?\n\n```\nWhat is left\n```\n\n<!-- Of one client. -->\n"
    assert not list(prose.in_markdown(page))
    assert [each.line for each in prose.in_markdown(page + "\n## What is left\n")] == [9]


def test_cells_of_a_table_are_read_and_its_head_is_not() -> None:
    page = "| What it is | use |\n|---|---|\n| Whether it is left | `Of it` |\n"
    assert [each.text for each in prose.in_markdown(page)] == ["Whether it is left"]


def test_a_file_is_counted_with_its_package_before_and_after_packages_move() -> None:
    assert prose.folder("broker/admin/app.py") == "broker"
    assert prose.folder("daybook/broker/admin/app.py") == "broker"
    assert prose.folder("daybook/__init__.py") == "daybook"
    assert prose.folder("docs/formats/replication.md") == "docs/formats/replication.md"
    assert prose.folder("README.md") == "README.md"


def test_limits_only_fall() -> None:
    limits = {"wire": 2, "bookie": 1}
    assert not list(prose.complaints(Counter(wire=2, bookie=1), limits))
    (more,) = prose.complaints(Counter(wire=3, bookie=1), limits)
    assert "wire: 3 sentences" in more
    (fewer,) = prose.complaints(Counter(wire=2), limits)
    assert fewer == "bookie: lower the limit in tools/prose.py to 0 (from 1)"
    (new,) = prose.complaints(Counter(wire=2, bookie=1, broker=1), limits)
    assert "broker: 1 sentences" in new


def test_the_lint_ends_with_an_error_above_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "LIMITS", {"nowhere": 1})
    with pytest.raises(SystemExit, match=r"nowhere: lower the limit in tools/prose.py to 0"):
        prose.main([])


def test_a_named_file_is_read_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    prose.main(["tests/test_prose.py", "tools/prose.py"])
    assert capsys.readouterr().out == ""
