"""`daybook topics` for several topics, with patterns, and the broker of a topic."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import trio

from daybook.clients.cli import many_topics
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.many_topics import AT_ONCE
from daybook.clients.cli.topic_patterns import parse_pattern
from daybook.clients.python.errors import ConflictError, UnavailableError
from tests.clients.cli.conftest import Daybook, FakeAdmin

ROOT = "/admin/v2/persistent/public/default"
JSON = ("--output", "json")


def full(name: str) -> str:
    return f"persistent://public/default/{name}"


def answer(fake: FakeAdmin, *names: str) -> None:
    for name in names:
        fake.answers["PUT", f"{ROOT}/{name}"] = 204, None
        fake.answers["DELETE", f"{ROOT}/{name}?force=false"] = 204, None
        fake.answers["GET", f"{ROOT}/{name}/partitions"] = 200, {"partitions": 0}


def changes(fake: FakeAdmin) -> set[str]:
    return {path for method, path, _ in fake.asked if method != "GET"}


def test_several_topics_are_created_with_one_summary(
    daybook: Daybook,
    fake_admin: FakeAdmin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(fake_admin, "a", "b", "c", "d")
    listed = tmp_path / "names"
    listed.write_text(f"c\n\n  d \n{full('a')}\n")
    monkeypatch.setattr("sys.stdin", StringIO("b\nb\n"))
    code, out, err = daybook("topics", "create", "a", "-", "--from", str(listed), *JSON)
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "created": [full(name) for name in "abcd"],
        "failed": {},
        "not tried": [],
    }
    assert len(fake_admin.asked) == 4, "a name that is given twice is one topic"


def test_a_topic_that_fails_leaves_the_others_and_an_exit_code(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    answer(fake_admin, "a", "c")
    fake_admin.answers["PUT", f"{ROOT}/b"] = 409, {"reason": "it exists already"}
    code, out, err = daybook("topics", "create", "a", "b", "c", "--property", "x=y")
    assert (code, out.split()) == (1, ["created", "2", "failed", "1"])
    assert err == f"{full('b')}: it exists already (HTTP 409).\n"


def test_names_are_needed_and_checked_before_anything_is_done(
    daybook: Daybook, fake_admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = daybook("topics", "create")
    assert (code, "No topic is named" in err) == (1, True)
    code, _, err = daybook("topics", "create", "a", "p://x")
    assert (code, "is not a topic name" in err) == (1, True)
    monkeypatch.setattr(many_topics, "_NAMES_MAX", 1)
    code, _, err = daybook("topics", "create", "a", "b")
    assert (code, "1 topics at most" in err) == (1, True)
    assert fake_admin.asked == []


async def test_a_bounded_number_is_under_way_and_none_begins_without_a_broker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    now = most = 0

    async def ask(name: str) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1
        if name == "40":
            raise UnavailableError("no broker")
        if name == "7":
            raise ConflictError(409, "there")
        return name

    names = [str(number) for number in range(100)]
    found = await many_topics._ask_each(names, ask, str, lambda *_: None)
    assert most == AT_ONCE
    assert set(found.failed) == {"7", "40"}
    assert 100 - 48 - AT_ONCE < len(found.untried) <= 100 - 48
    begun = names[: -len(found.untried)]
    assert list(found.done) == [name for name in begun if name not in ("7", "40")], "none is cut"
    assert found.untried == names[len(begun) :]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_several_topics_are_deleted_after_one_question(
    daybook: Daybook, fake_admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(fake_admin, *"abcd")
    fake_admin.answers["DELETE", f"{ROOT}/b?force=false"] = 412, {"reason": "it has consumers"}
    words = ("topics", "delete", *"abcd")
    code, _, err = daybook(*words)
    assert (code, fake_admin.asked) == (1, [])
    assert "Delete 4 topics" in err
    assert "add --yes" in err
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    code, out, err = daybook(*words, *JSON)
    assert (code, json.loads(out)["deleted"]) == (1, [full(name) for name in "acd"])
    assert "--force deletes it nevertheless" in err
    monkeypatch.setattr("sys.stdin", StringIO("a\n"))
    assert daybook("topics", "delete", "-", "--yes")[1].split() == ["deleted", "1", "failed", "0"]


def test_several_topics_are_lines_of_statistics(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    answer(fake_admin, "a", "b")
    subscription: dict[str, Any] = {"msgBacklog": 3, "consumers": [{}], "backlogExact": False}
    stats = {"storageSize": 7, "publishers": [{}], "subscriptions": {"s": subscription}}
    fake_admin.answers["GET", f"{ROOT}/a/stats"] = 200, stats
    fake_admin.answers["GET", f"{ROOT}/b/stats"] = 200, {}
    code, out, _ = daybook("topics", "stats", "a", "b", "missing")
    assert code == 1
    head, first, second = out.splitlines()
    assert head.startswith("topic")
    assert first.split() == [full("a"), "-", "1", "1", "1", "7", "-", "-", "~3"]
    assert second.split()[-1] == "0"
    assert json.loads(daybook("topics", "stats", "a", "b", *JSON)[1])[full("a")] == stats
    rows = json.loads(daybook("topics", "delete", "a", "b", "--dry-run", *JSON)[1])
    assert [row["deleted"] for row in rows] == ["only with --force", "would be deleted"]
    assert changes(fake_admin) == set()


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("app-.*", {"app-1", "app-2-partition-0"}),
        ("app-2", {"app-2-partition-0"}),
        (r"app-\d*", {"app-1", "app-2-partition-0"}),
        ("public/default/.*1", {"app-1"}),
        ("persistent://public/default/b.*", {"bee"}),
        ("pp", set[str]()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matching: set[str]) -> None:
    matches = parse_pattern(pattern)
    names = ["app-1", "app-2-partition-0", "bee"]
    assert {name for name in names if matches(full(name))} == matching


@pytest.mark.parametrize("pattern", ["app-*", "*", "(", "persistent://public/default/app-*"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match="regular expression"):
        parse_pattern(pattern)


def test_the_list_has_a_namespace_and_a_pattern(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    names = [f"persistent://shop/eu/{name}" for name in ("a1", "a2", "b1")]
    fake_admin.answers["GET", "/admin/v2/persistent/shop/eu"] = 200, names
    code, out, _ = daybook("topics", "list", "shop/eu", "--pattern", "a.", *JSON)
    assert (code, [row["topic"] for row in json.loads(out)]) == (0, names[:2])
    out = daybook("topics", "list", "shop/eu", "--pattern", ".1", "--limit", "1", *JSON)[1]
    assert json.loads(out) == [{"topic": names[0]}]
    code, _, err = daybook("topics", "list", "shop/eu", "--namespace", "a/b")
    assert (code, "differ" in err) == (1, True)


def test_a_lookup_names_the_broker_of_each_partition(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    lookup = "/lookup/v2/topic/persistent/public/default"
    urls = {"brokerUrl": "pulsar://b:6650", "brokerUrlTls": "", "httpUrl": "http://b:8080"}
    bundle = b"0x00000000_0x80000000", {"Content-Type": "text/plain"}
    for name in ("a", "p-partition-0", "p-partition-1"):
        fake_admin.answers["GET", f"{lookup}/{name}"] = 200, urls
        fake_admin.answers["GET", f"{lookup}/{name}/bundle"] = 200, bundle
    answer(fake_admin, "a")
    fake_admin.answers["GET", f"{ROOT}/p/partitions"] = 200, {"partitions": 2}
    row = {
        "topic": full("a"),
        "broker": "pulsar://b:6650",
        "admin": "http://b:8080",
        "bundle": "public/default/0x00000000_0x80000000",
    }
    code, out, err = daybook("topics", "lookup", "a", *JSON)
    assert (code, json.loads(out)) == (0, row), err
    rows = json.loads(daybook("topics", "lookup", "p", *JSON)[1])
    assert [each["topic"] for each in rows] == [full("p-partition-0"), full("p-partition-1")]
    code, _, err = daybook("topics", "lookup", "missing")
    assert code == 1
