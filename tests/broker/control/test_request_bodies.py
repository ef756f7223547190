"""The body of a request to the REST of a broker: its size and its time are bounded."""

from collections.abc import Iterable, MutableMapping
from typing import Any

import pytest
import trio
from starlette.requests import Request
from trio.testing import MockClock

from daybook.broker.admin.handling import BadBodyError, BodyTooLargeError, Call

MAX = 4 << 20


def call(pieces: Iterable[bytes], each_s: float) -> Call[None]:
    """Return a call whose body comes in pieces, one after so many seconds."""
    left = iter(pieces)

    async def receive() -> MutableMapping[str, Any]:
        await trio.sleep(each_s)
        piece = next(left, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    return Call(Request({"type": "http"}, receive), None, MAX)


@pytest.mark.parametrize(
    ("pieces", "each_s"),
    [([], 9.0), ([b"a", b"b"], 3.0), ([bytes(256 << 10)] * 16, 2.0), ([bytes(MAX)], 4.9)],
)
async def test_a_body_that_comes_at_128_kib_a_second_is_read(
    pieces: list[bytes], each_s: float, autojump_clock: MockClock
) -> None:
    assert await call(pieces, each_s).content() == b"".join(pieces)


@pytest.mark.parametrize(
    ("pieces", "each_s"),
    [([], 11.0), ([b"a"] * 100, 1.0), ([bytes(64 << 10)] * 64, 1.0)],
)
async def test_a_body_that_drips_is_refused(
    pieces: list[bytes], each_s: float, autojump_clock: MockClock
) -> None:
    with pytest.raises(BadBodyError, match="did not arrive within 10 s, and a second more"):
        await call(pieces, each_s).content()


async def test_a_body_that_is_too_large_is_refused_before_its_end(
    autojump_clock: MockClock,
) -> None:
    endless = (bytes(1 << 20) for _ in range(1 << 20))
    with pytest.raises(BodyTooLargeError, match="may have at most 4194304 bytes"):
        await call(endless, 0.0).content()
