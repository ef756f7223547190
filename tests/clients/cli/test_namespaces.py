"""`daybook namespaces show` and `delete`, against a scripted REST."""

import json
import os
from typing import Any

import pytest

from tests.clients.cli.conftest import Daybook, FakeAdmin

NAMESPACE = "/admin/v2/namespaces/shop/eu"
TOPICS = "/admin/v2/persistent/shop/eu"
FORCED = f"{NAMESPACE}?force=true"
GONE = 404, {"reason": "the namespace shop/eu does not exist"}
SPENT = 503, {"reason": "the operation takes too long; it may still be carried out"}
MARKED, FREE = (200, {"deleted": True}), (200, {"deleted": False})
DELETE = ("namespaces", "delete", "shop/eu", "--force", "--yes")


def names(count: int) -> tuple[int, Any]:
    return 200, [f"persistent://shop/eu/t-{number}" for number in range(count)]


def deletions(fake: FakeAdmin) -> int:
    return sum(method == "DELETE" for method, _, _ in fake.asked)


@pytest.mark.usefixtures("hurried")
def test_a_deletion_is_asked_for_again_until_the_namespace_is_gone(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.in_turn["GET", NAMESPACE] = [FREE, FREE, MARKED, MARKED, GONE]
    fake_admin.in_turn["GET", TOPICS] = [names(3400), names(2000), names(900), names(10)]
    fake_admin.in_turn["DELETE", FORCED] = [SPENT, SPENT]
    code, out, err = daybook(*DELETE, "--output", "json")
    assert (code, json.loads(out)) == (0, {"namespace": "shop/eu", "deleted": True}), err
    assert deletions(fake_admin) == 2


@pytest.mark.usefixtures("hurried")
def test_a_deletion_that_gets_nowhere_ends_with_its_error(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["GET", NAMESPACE] = FREE
    fake_admin.answers["GET", TOPICS] = names(3)
    fake_admin.answers["DELETE", FORCED] = 503, {"reason": "orders cannot be deleted now"}
    code, _, err = daybook(*DELETE)
    assert (code, deletions(fake_admin)) == (1, 1)
    assert "orders cannot be deleted now" in err


@pytest.mark.usefixtures("hurried")
def test_a_mark_without_a_broker_is_taken_up_and_others_are_waited_for(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    """A broker died in the middle; its topics stay at 5 until somebody asks again."""
    fake_admin.answers["GET", NAMESPACE] = MARKED
    fake_admin.answers["GET", TOPICS] = names(5)
    fake_admin.in_turn["DELETE", FORCED] = [(204, None)]
    assert daybook(*DELETE)[0] == 0
    assert deletions(fake_admin) == 1
    fake_admin.in_turn["GET", NAMESPACE] = [MARKED, MARKED, GONE]
    fake_admin.in_turn["GET", TOPICS] = [names(5), names(1)]
    assert daybook(*DELETE)[0] == 0
    assert deletions(fake_admin) == 1, "another command's request did it"


@pytest.mark.usefixtures("hurried")
def test_the_time_limit_says_what_is_left(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", NAMESPACE] = MARKED
    fake_admin.answers["GET", TOPICS] = names(1200)
    code, out, err = daybook(*DELETE, "--timeout", "20")
    assert (code, out) == (1, "")
    assert "was not deleted within 20 s: 1,200 topics were left" in err
    assert "daybook namespaces show shop/eu" in err


def test_the_namespace_must_be_there(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", NAMESPACE] = GONE
    code, _, err = daybook(*DELETE)
    assert (code, deletions(fake_admin)) == (1, 0)
    assert "does not exist" in err


def answer_loads(fake: FakeAdmin, **counts: int) -> None:
    broker = os.environ["DAYBOOK_ADMIN_URL"].removeprefix("http://")
    boundaries = {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"]}
    fake.answers["GET", f"{NAMESPACE}/bundles"] = 200, boundaries
    fake.answers["GET", "/admin/v2/brokers"] = 200, [broker]
    owned: dict[str, object] = {"shop/eu/0x00000000_0x80000000": {}}
    path = f"/admin/v2/brokers/-/{broker.replace(':', '%3A')}/ownedNamespaces"
    fake.answers["GET", path] = 200, owned
    stats = {"shop/eu/0x00000000_0x80000000": {"topics": 3, **counts}}
    report = {"lastStats": stats, "numTopics": 3}
    fake.answers["GET", "/admin/v2/broker-stats/load-report"] = 200, report


def test_the_clients_are_counted_before_anything_is_deleted(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    fake_admin.answers["GET", NAMESPACE] = 200, {"deleted": True, "bundles": {"numBundles": 2}}
    fake_admin.answers["GET", TOPICS] = names(3)
    answer_loads(fake_admin, producerCount=2, consumerCount=1)
    json_ = ("--output", "json")
    out = daybook("namespaces", "delete", "shop/eu", "--force", "--dry-run", *json_)[1]
    assert json.loads(out)["producers and consumers"] == 3
    err = daybook("namespaces", "delete", "shop/eu", "--force")[2]
    assert "2 producers and 1 consumer are connected" in " ".join(err.split())
    shown = json.loads(daybook("namespaces", "show", "shop/eu", *json_)[1])
    assert (shown["state"], shown["topics"], shown["bundles"]) == ("being deleted", 3, 2)
    assert (shown["producers"], shown["consumers"]) == (2, 1)
    fake_admin.answers["GET", "/admin/v2/brokers"] = 403, {"reason": "for super users"}
    shown = json.loads(daybook("namespaces", "show", "shop/eu", *json_)[1])
    assert (shown["producers"], shown["consumers"]) == (None, None), "unknown is not 0"
    assert "not known how many" in daybook("namespaces", "delete", "shop/eu", "--force")[2]
