"""The lines of a log: their form, what they carry, and who gets them."""

import logging
import re
import sys
from io import StringIO

import pytest

from daybook.wire.logging import Log, log_to_stderr, logfmt, silent_log, std_log


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "k=plain"),
        ("two words", 'k="two words"'),
        ('a "quote"', r'k="a \"quote\""'),
        ("a=b", 'k="a=b"'),
        ("line\nline", r"k=line\nline"),
        (r"C:\dir", r"k=C:\dir"),
        (r"C:\my dir", r'k="C:\\my dir"'),
        ("", "k="),
        (None, "k="),
        (True, "k"),
        (False, "k=false"),
        (3, "k=3"),
        (0.5, "k=0.5"),
    ],
)
def test_values_are_quoted_where_they_must_be(value: object, shown: str) -> None:
    assert logfmt({"event": "x", "k": value}) == f"event=x {shown}"


def test_a_line_begins_with_time_level_and_event(monkeypatch: pytest.MonkeyPatch) -> None:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    log = log_to_stderr(host="h").bind(part="p")
    log.info("it starts", port=1)
    log.warning("odd")
    lines = written.getvalue().splitlines()
    time = r"timestamp=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
    assert re.fullmatch(time + r' level=info event="it starts" host=h part=p port=1', lines[0])
    assert re.fullmatch(time + " level=warning event=odd host=h part=p", lines[1])


def test_an_error_shows_its_traceback_in_the_same_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        log_to_stderr().error("failed", exc_info=error)
    (line,) = written.getvalue().splitlines()
    assert "level=error event=failed exception=" in line
    assert r"Traceback (most recent call last):\n" in line
    assert line.endswith('ValueError: no such thing"')


def test_a_library_gets_lines_with_their_level(caplog: pytest.LogCaptureFixture) -> None:
    log = std_log(logging.getLogger("daybook.some"))
    log.warning("odd 100%", port=1)
    log.error("failed", exc_info=ValueError("no such thing"))
    first, second = caplog.records
    assert (first.levelname, first.getMessage()) == ("WARNING", 'event="odd 100%" port=1')
    assert (second.levelname, second.getMessage()) == ("ERROR", "event=failed")
    assert second.exc_info is not None
    assert str(second.exc_info[1]) == "no such thing"


def test_bound_facts_belong_to_their_log_alone() -> None:
    lines: list[tuple[str, str, dict[str, object]]] = []
    log = Log(lambda *line: lines.append(line), {"a": 1})
    log.bind(b=2, a=3).info("inner")
    log.info("outer", c=4)
    assert lines == [("info", "inner", {"a": 3, "b": 2}), ("info", "outer", {"a": 1, "c": 4})]


def test_a_silent_log_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    silent_log().error("failed", exc_info=ValueError())
    assert capfd.readouterr() == ("", "")
