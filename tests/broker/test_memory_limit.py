"""The memory limit of pending deliveries, by the number of slow consumers."""

import pytest

from daybook.broker.dispatch.memory_limit import DispatchMemoryLimit

MB = 1 << 20


@pytest.mark.parametrize(
    ("slow", "share"),
    [(0, 4 * MB), (1, 4 * MB), (64, 4 * MB), (128, 2 * MB), (1024, MB // 4), (100_000, MB // 16)],
)
def test_the_share_of_one_connection(slow: int, share: int) -> None:
    budget = DispatchMemoryLimit(total_bytes=256 * MB, connection_bytes=4 * MB)
    budget.slow = slow
    assert budget.share_bytes == share
