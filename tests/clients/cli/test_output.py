"""How tables show values."""

import json

import pytest

from daybook.clients.cli.output import write_record, write_rows

ROW = {"name": "b1", "answers": True, "order": None, "limbo": False}


def test_people_read_words(capsys: pytest.CaptureFixture[str]) -> None:
    write_record(ROW, "table")
    fields = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert fields == [["name", "b1"], ["answers", "yes"], ["order", "-"], ["limbo", "no"]]
    write_rows([ROW], ("answers", "limbo"), "table")
    assert capsys.readouterr().out == "answers  limbo\nyes      no\n"


def test_programs_read_values(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows([ROW], ("answers",), "json")
    assert json.loads(capsys.readouterr().out) == [ROW]
