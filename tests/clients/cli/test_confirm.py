"""Commands that destroy something ask on a terminal, and need --yes elsewhere."""

from io import StringIO
from typing import Any

import pytest

from tests.clients.cli.conftest import Daybook, FakeAdmin

ROOT = "/admin/v2/persistent/public/default/orders"
SUB = f"{ROOT}/subscription/billing"
LAST = {"ledgerId": 4, "entryId": 9, "partitionIndex": -1}
STATS: dict[str, Any] = {"storageSize": 2048, "subscriptions": {"billing": {"msgBacklog": 1200}}}


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def orders(fake_admin: FakeAdmin) -> FakeAdmin:
    answers = fake_admin.answers
    answers["GET", f"{ROOT}/partitions"] = 200, {"partitions": 0}
    answers["GET", f"{ROOT}/stats"] = 200, STATS
    answers["GET", "/admin/v2/persistent/shop/eu"] = 200, []
    answers["GET", "/admin/v2/namespaces/shop/eu"] = 200, {}
    answers["POST", f"{ROOT}/terminate"] = 200, LAST
    answers["POST", f"{SUB}/skip_all"] = 204, None
    answers["DELETE", "/admin/v2/schemas/public/default/orders/schema?force=false"] = (
        200,
        {"version": 1},
    )
    for path in (f"{ROOT}?force=false", f"{ROOT}/truncate", f"{SUB}?force=false"):
        answers["DELETE", path] = 204, None
    for path in ("/admin/v2/namespaces/shop/eu", "/admin/v2/tenants/shop"):
        answers["DELETE", path] = 204, None
    return fake_admin


def _changes(fake: FakeAdmin) -> list[str]:
    return [path for method, path, _ in fake.asked if method != "GET"]


DESTRUCTIVE = [
    (("topics", "delete", "orders"), "2,048 stored bytes and 1 subscription?"),
    (("topics", "terminate", "orders"), "for good?"),
    (("topics", "truncate", "orders"), "2,048 bytes, and a backlog of up to 1,200 messages?"),
    (("topics", "clear", "orders", "billing"), "which are 1,200?"),
    (("topics", "subscriptions", "delete", "orders", "billing"), "1,200 messages that it has not"),
    (("namespaces", "delete", "shop/eu"), "Delete the namespace shop/eu"),
    (("tenants", "delete", "shop"), "Delete the tenant shop?"),
    (("schemas", "delete", "orders"), "Delete the schema of"),
]


@pytest.mark.parametrize(("words", "question"), DESTRUCTIVE, ids=lambda each: " ".join(each[:2]))
def test_what_destroys_asks_first(
    daybook: Daybook,
    orders: FakeAdmin,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    question: str,
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    code, _, err = daybook(*words)
    assert (code, _changes(orders)) == (1, [])
    assert question in " ".join(err.split())
    assert "add --yes" in err
    monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
    assert daybook(*words)[0] == 1
    assert _changes(orders) == []
    monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
    assert daybook(*words)[0] == 0
    assert len(_changes(orders)) == 1
    monkeypatch.setattr("sys.stdin", StringIO())
    assert daybook(*words, "--yes")[0] == 0
    assert len(_changes(orders)) == 2


def test_a_subscription_that_is_not_there_is_said_before_the_question(
    daybook: Daybook, orders: FakeAdmin
) -> None:
    code, _, err = daybook("topics", "clear", "orders", "nosub")
    assert (code, _changes(orders)) == (1, [])
    assert "has no subscription nosub" in err
    assert "daybook topics subscriptions list orders" in err
