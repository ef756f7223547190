"""The choice of ports: exact ones, preferred ones and free ones."""

import socket
import sys
from random import Random

import pytest

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.ports import ANY_PORT_MAX, ANY_PORT_MIN, HOST, PortChooser

KERNEL_PORT_MIN = 32_768  # from here on, outgoing connections take ports


class SameAgain(Random):
    """A random generator that always proposes the same port."""

    def __init__(self, port: int) -> None:
        super().__init__(0)
        self.port = port
        self.asked = 0

    def randint(self, a: int, b: int) -> int:
        self.asked += 1
        assert a <= self.port <= b
        return self.port


def listening() -> socket.socket:
    """A foreign server on a port that `any` may propose."""
    with PortChooser(Random()) as ports:
        port = ports.any()
    return socket.create_server((HOST, port))


def test_any_port_is_none_that_an_outgoing_connection_may_take_meanwhile() -> None:
    with PortChooser(Random()) as ports:
        chosen = [ports.any() for _ in range(50)]
    assert len(set(chosen)) == 50
    assert all(ANY_PORT_MIN <= port <= ANY_PORT_MAX < KERNEL_PORT_MIN for port in chosen)
    for port in chosen:
        socket.create_server((HOST, port)).close()


def test_any_port_stays_taken_until_all_are_chosen() -> None:
    with PortChooser(Random(1)) as ports:
        port = ports.any()
        with PortChooser(Random(1)) as others:
            assert others.any() != port


def test_when_all_that_chance_proposes_are_taken_the_kernel_chooses() -> None:
    with listening() as taken:
        rng = SameAgain(taken.getsockname()[1])
        with PortChooser(rng) as ports:
            port = ports.any()
            assert port not in (0, rng.port)
            assert rng.asked > 1


def test_zero_is_any_for_who_types_it_and_for_who_does_not_care() -> None:
    with PortChooser(Random()) as ports:
        for port in (ports.exactly(0, "the service", "choose"), ports.preferably(0)):
            assert ANY_PORT_MIN <= port <= ANY_PORT_MAX


def test_a_port_that_is_taken_is_an_error_if_it_was_asked_for_and_else_another() -> None:
    with listening() as taken, PortChooser(Random()) as ports:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} for the service is taken: choose."):
            ports.exactly(port, "the service", "choose")
        assert ports.preferably(port) not in (0, port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that end with a process")
def test_a_chosen_port_is_nobody_elses_also_while_its_part_is_down() -> None:
    with PortChooser(Random()) as ports:
        port = ports.any()
        ports.release()
        for _ in range(3):  # started, and started again
            with socket.create_server((HOST, port)):
                pass
            with PortChooser(SameAgain(port)) as others:
                assert others.any() != port
                assert others.preferably(port) != port
                with pytest.raises(UserError, match=f"Port {port} for the service is taken"):
                    others.exactly(port, "the service", "choose")
    with PortChooser(SameAgain(port)) as others:
        assert others.any() == port
