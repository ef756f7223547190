"""A column of keys goes to the partitions to which a producer sends them."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from daybook.clients.python.protocol.routing import Router
from daybook.clients.spark.key_partitions import partitions_of_keys

keys = st.binary(max_size=9) | st.sampled_from([b"", b"k" * 63, b"k" * 64, b"k" * 65, b"\xff" * 99])


@given(st.lists(st.none() | keys, min_size=1, max_size=30), st.integers(1, 1000), st.integers(0, 5))
def test_each_key_has_the_partition_of_the_router(
    keys: list[bytes | None], partitions: int, skipped: int
) -> None:
    skipped = min(skipped, len(keys) - 1)
    column = pa.array(keys, pa.large_binary()).slice(skipped)
    router = Router(partitions)
    expected = [None if key is None else router.for_key(key) for key in keys[skipped:]]
    assert partitions_of_keys(column, router).to_pylist() == expected
