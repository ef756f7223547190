"""Expressions over names of topics, compared with Python's `re` where both know the syntax."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.protocol.patterns import CHARS_MAX, PatternError, TopicPattern

NS = "public/default"


def matches(expression: str, local: str) -> bool:
    return TopicPattern(f"persistent://{NS}/{expression}").matches(f"persistent://{NS}/{local}")


@pytest.mark.parametrize(
    ("expression", "local", "matched"),
    [
        ("a", "a", True),
        ("a", "ab", False),  # the whole name has to match
        ("a", "ba", False),
        (".*", "anything at all", True),
        ("foo-.*", "foo-7-partition-2", True),
        ("foo", "foo-partition-12", True),  # the suffix is not part of the name
        ("foo-partition-1", "foo-partition-1", False),
        ("(a|b)", "b", True),
        ("a|b", "b", False),  # one of these names has no namespace
        ("(?:a|b){2,3}", "abab", False),
        ("(?P<x>a|b){2,3}", "aba", True),
        ("(?<x>a){2,}", "a", False),
        ("a{2}", "aa", True),
        ("a+?b*?c??", "aab", True),
        (r"\d+[^x-z]", "12a", True),
        (r"\d+[^x-z]", "12y", False),
        (r"[-a]+", "-a-", True),
        (r"[\d.]+", "1.2", True),
        (r"\Qa.b\E+", "a.bbb", True),
        (r"\Qa.b\E", "axb", False),
        ("^a$", "a", False),  # the beginning is that of the whole name
        ("a$", "a", True),
        ("(a*)*b", "aaab", True),
        ("", "a", False),
    ],
)
def test_an_expression_matches_whole_names(expression: str, local: str, matched: bool) -> None:
    assert matches(expression, local) is matched


@pytest.mark.parametrize(
    "text",
    [
        rf"\Qpersistent://{NS}/a.b\E",
        rf"\Qpersistent\E://{NS}/a\.b",
        f"{NS}/a[.]b",
        rf"^{NS}/a[.]b\z",
        rf"\A{NS}/a[.]b$",
    ],
)
def test_the_domain_is_cut_off_whatever_surrounds_it(text: str) -> None:
    pattern = TopicPattern(text)
    assert pattern.matches(f"persistent://{NS}/a.b")
    assert pattern.matches(f"non-persistent://{NS}/a.b")
    assert not pattern.matches(f"persistent://{NS}/axb")


@pytest.mark.parametrize(
    "text",
    [
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        r"(a)\1",
        "a**",
        "a*+",
        "a{2}{3}",
        "*a",
        "(a",
        "a)",
        "[a",
        "a\\",
        "[z-a]",
        "[]",
        "{2}",
        "a{3,2}",
        "a{1001}",
        "(a{100}){100}",
        "((a{1000}){1000}){1000}",
        ".{1000}" * 30,
        "a" * (CHARS_MAX + 1),
    ],
)
def test_other_syntax_is_left_to_the_client(text: str) -> None:
    with pytest.raises(PatternError):
        TopicPattern(text)


def test_no_expression_needs_more_than_linear_time() -> None:
    begin = time.perf_counter()
    for expression in (
        "(a*)*b",
        "(a|a)*b",
        "(a|aa)+b",
        "a*" * 40 + "b",
        "(.*){20}b",
        "(a?){40}a{40}b",
    ):
        assert not matches(expression, "a" * 900)
    assert time.perf_counter() - begin < 5


PARTS = st.sampled_from(
    [
        "a",
        "b",
        "c",
        ".",
        "a*",
        "b+",
        "[ab]",
        "[^a]",
        "(a|b)",
        "(ab)*",
        "(a|bc)?",
        "a{2}",
        "b{1,3}",
        r"\d",
        r"[a-c]{0,2}",
    ]
)


@given(st.lists(PARTS, max_size=6), st.lists(st.sampled_from("abc1-"), min_size=1, max_size=8))
def test_an_expression_matches_as_in_python(parts: list[str], name: list[str]) -> None:
    expression, local = "".join(parts), "".join(name)
    assert matches(expression, local) is bool(re.fullmatch(expression, local))
