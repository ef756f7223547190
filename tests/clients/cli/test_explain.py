"""`daybook explain` against a scripted REST."""

import json
from typing import Any

from tests.clients.cli.conftest import Daybook, FakeAdmin

PATH = "/admin/v2/persistent/public/default/orders/subscription/billing/explain"
FOUND: dict[str, Any] = {
    "topic": "persistent://public/default/orders",
    "subscription": "billing",
    "type": "Shared",
    "summary": "The consumer c1 at 10.0.0.1:5 has no permits, for 12.0 s.",
    "waitingToSend": True,
    "stalledS": None,
    "msgBacklog": 7,
    "backlogExact": False,
    "blockers": [{"text": "The consumer c1 has no permits.", "since": "now", "consumer": "c1"}],
    "holders": [
        {"consumer": "c1", "address": "/10.0.0.1:5", "unackedMessages": 5, "oldest": "3:4"}
    ],
}


def test_the_blocker_is_said_in_words(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", PATH] = 200, FOUND
    code, out, _ = daybook("explain", "subscription", "orders", "billing")
    assert code == 0
    assert FOUND["summary"] in out
    assert "~7" in out
    assert "3:4" in out
    code, out, _ = daybook("explain", "subscription", "orders", "billing", "--output", "json")
    assert (code, json.loads(out)) == (0, FOUND)


def test_a_subscription_that_is_missing_is_said_in_one_sentence(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["GET", PATH] = 404, {"reason": "there is no subscription billing"}
    code, out, err = daybook("explain", "subscription", "orders", "billing")
    assert (code, out) == (1, "")
    assert err.startswith("Error: there is no subscription billing (HTTP 404).")
