"""File descriptors: how they are divided, and the errors when there are none."""

import errno
import os
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook.wire import descriptors
from daybook.wire.descriptors import LIMIT_MIN, Descriptors, ShortageLog, share_out
from daybook.wire.errors import ConnectionLostError
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork

EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_large_limit_bounds_nothing() -> None:
    shared = share_out(1 << 20, reserve=512, service_max=10_000, http_max=256)
    assert shared == Descriptors(1 << 20, service=10_000, http=256)


def test_under_the_usual_limit_there_is_room_for_everything_else() -> None:
    assert share_out(1024, reserve=512, service_max=10_000, http_max=256) == Descriptors(
        1024, service=384, http=128
    )


@given(
    st.integers(LIMIT_MIN, 1 << 20),
    st.integers(1, 5000),
    st.integers(1, 20_000),
    st.integers(1, 1000),
)
def test_ports_never_get_what_is_kept_back(
    limit: int, reserve: int, service_max: int, http_max: int
) -> None:
    shared = share_out(limit, reserve=reserve, service_max=service_max, http_max=http_max)
    assert shared.service + shared.http <= limit - min(reserve, limit // 2)
    assert 1 <= shared.service <= service_max
    assert 1 <= shared.http <= http_max


def test_a_limit_under_which_nobody_could_be_served_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ulimit -n"):
        share_out(LIMIT_MIN - 1, reserve=512, service_max=10, http_max=10)


async def test_a_shortage_is_one_line_a_second_with_a_count(mock_clock: MockClock) -> None:
    lines: list[dict[str, Any]] = []
    shortage = ShortageLog(lambda _event, **facts: lines.append(facts))
    for _ in range(25):
        shortage.failed(6650, EMFILE)
        mock_clock.jump(0.125)
        await trio.lowlevel.checkpoint()
    assert [line["failures"] for line in lines] == [1, 8, 8, 8]
    assert lines[0]["why"] == "Too many open files"
    assert shortage.failures == 25


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENETDOWN, errno.EPROTO])
async def test_an_accept_that_fails_is_repeated_and_told(code: int) -> None:
    """Once, errors other than a lack of descriptors closed the port for good."""
    failures: list[tuple[int, int | None]] = []
    network = TcpNetwork(lambda port, error: failures.append((port, error.errno)))
    listener: Any = await network.listen("127.0.0.1", 0)
    accept = listener._socket

    class Failing:
        tries = 0

        def accept(self) -> Any:
            self.tries += 1
            if self.tries <= 2:
                raise OSError(code, os.strerror(code))
            return accept.accept()

        def fileno(self) -> int:
            return int(accept.fileno())

    listener._socket = Failing()
    (await network.connect("127.0.0.1", listener.port)).close()
    with trio.fail_after(60):
        (await listener.accept()).close()
    assert failures == [(listener.port, code)] * 2
    accept.close()


async def test_out_of_descriptors_nobody_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the error was an unexpected one: it ended the broker."""

    def no_descriptor(*_: object) -> None:
        raise EMFILE

    monkeypatch.setattr(trio.socket, "socket", no_descriptor)
    with pytest.raises(ConnectionLostError, match="Too many open files"):
        await TcpNetwork().connect("127.0.0.1", 1)


def test_less_than_was_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, object]] = []
    monkeypatch.setattr(descriptors, "open_files_limit", lambda: 1024)
    shares = descriptors.bounds_of_ports(
        reserve=512, service_max=10_000, http_max=256, warn=lambda _, **facts: told.append(facts)
    )
    assert told == [{"limit": 1024, "connections": shares.service, "wanted": 10_000}]
    descriptors.bounds_of_ports(
        reserve=512, service_max=shares.service, http_max=256, warn=lambda _, **f: told.append(f)
    )
    assert len(told) == 1
