"""The unload of a namespace while its bundles are split (seed 3001709)."""

from typing import Any

import pytest

from daybook.broker.admin.bundle_operations import BundleOperations
from daybook.broker.errors import NotFoundError
from daybook.broker.protocol.bundles import Bundles

HALVES = Bundles.equal(2)
FIRST, SECOND = HALVES.ranges()


class FakePolicies:
    """The policies of one namespace, whose bundles a test changes."""

    def __init__(self) -> None:
        self.found = HALVES

    async def bundles(self, namespace: str) -> Bundles:
        return self.found


class FakeOperations(BundleOperations):
    """Notes what is released; `before` runs in front of each release."""

    def __init__(self, policies: FakePolicies) -> None:
        nothing: Any = None
        known: Any = policies
        super().__init__(nothing, known, nothing, nothing, nothing, nothing, bundles_max=nothing)
        self.policies = policies
        self.released: list[str] = []
        self.splits: dict[str, list[int]] = {}

    async def unload(
        self, namespace: str, range_: str, *, destination: str = "", hand_over: bool = True
    ) -> None:
        points = self.splits.pop(range_, None)
        if points is not None:
            self.policies.found = self.policies.found.split(range_, points)
        if range_ not in self.policies.found.ranges():
            raise NotFoundError(f"there is no bundle {range_} in {namespace}")
        self.released.append(range_)


async def test_a_bundle_that_is_split_meanwhile_is_released_in_its_parts() -> None:
    policies = FakePolicies()
    operations = FakeOperations(policies)
    operations.splits = {FIRST: [0x20000000, 0x40000000], "0x20000000_0x40000000": [0x30000000]}
    await operations.unload_namespace("public/default")
    assert operations.released == policies.found.ranges()
    assert len(operations.released) == 5


async def test_a_namespace_that_is_deleted_meanwhile_is_an_error() -> None:
    operations = FakeOperations(FakePolicies())

    async def unload(*_: object, **__: object) -> None:
        raise NotFoundError("there is no namespace")

    operations.unload = unload  # type: ignore[method-assign]
    with pytest.raises(NotFoundError):
        await operations.unload_namespace("public/default")


def test_the_parts_of_a_bundle() -> None:
    assert HALVES.parts_of(FIRST) == [FIRST]
    assert HALVES.split(FIRST, [0x40000000]).parts_of(FIRST) == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
    ]
    assert HALVES.split(FIRST, [0x40000000]).parts_of(SECOND) == [SECOND]
