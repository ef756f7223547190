"""`daybook tenants`, and namespaces that are deleted with their topics."""

import json

from tests.clients.cli.conftest import Daybook, FakeAdmin

TENANTS = "/admin/v2/tenants"
NAMESPACE = "/admin/v2/namespaces/shop/eu"


def test_a_tenant_may_use_all_clusters_by_default(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", "/admin/v2/clusters"] = 200, ["one", "two"]
    fake_admin.answers["PUT", f"{TENANTS}/shop"] = 204, None
    assert daybook("tenants", "create", "shop")[0] == 0
    assert fake_admin.asked[-1][2]["allowedClusters"] == ["one", "two"]
    assert daybook("tenants", "create", "shop", "--cluster", "two")[0] == 0
    assert fake_admin.asked[-1][2]["allowedClusters"] == ["two"]
    fake_admin.answers["GET", TENANTS] = 200, ["public", "shop"]
    _, out, _ = daybook("tenants", "list", "--output", "json")
    assert json.loads(out) == [{"tenant": "public"}, {"tenant": "shop"}]


def test_a_tenant_is_deleted_when_it_is_empty(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["GET", "/admin/v2/namespaces/shop"] = 200, ["shop/eu"]
    code, out, _ = daybook("tenants", "delete", "shop", "--dry-run", "--output", "json")
    assert (code, json.loads(out)["namespaces"]) == (0, 1)
    full = 409, {"reason": "the tenant shop is not empty: delete what it contains first"}
    fake_admin.answers["DELETE", f"{TENANTS}/shop"] = full
    code, _, err = daybook("tenants", "delete", "shop", "--yes")
    assert code == 1
    assert "is not empty" in err


def test_a_namespace_with_topics_is_deleted_by_force(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    topics = ["persistent://shop/eu/a"]
    fake_admin.answers["GET", "/admin/v2/persistent/shop/eu"] = 200, topics
    fake_admin.answers["GET", NAMESPACE] = 200, {}
    code, _, err = daybook("namespaces", "delete", "shop/eu")
    assert code == 1
    assert "has 1 topic: delete them first, or add --force" in err
    refused = 409, {"reason": "the namespace shop/eu has 1 topic: delete them first, or use force"}
    fake_admin.answers["DELETE", NAMESPACE] = refused
    code, _, err = daybook("namespaces", "delete", "shop/eu", "--yes")
    assert code == 1
    assert "--force deletes them" in err
    fake_admin.answers["DELETE", f"{NAMESPACE}?force=true"] = 204, None
    assert daybook("namespaces", "delete", "shop/eu", "--force", "--yes")[0] == 0
