"""The places of connections: limits by address and by role, and who makes room."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.service.places import Place, Places, address_of


class Port:
    """Connections by number; `cut` has those that were cut, in their order."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.of: dict[int, Place] = {}
        self.cut: list[int] = []

    def connect(self, number: int, address: str, *, shakes: bool = False) -> str:
        peer = f"{address}:{number}"
        if why := self.places.why_not(peer, shakes=shakes):
            return why
        self.of[number] = self.places.add(peer, lambda _: self.cut.append(number), shakes=shakes)
        return ""

    def end_cut(self) -> None:
        for number in self.cut:
            if number in self.of:
                self.places.leave(self.of.pop(number))


def test_a_flood_from_one_address_cuts_itself() -> None:
    port = Port(Places(4))
    assert not port.connect(0, "10.0.0.1")
    for number in range(1, 20):
        assert not port.connect(number, "10.0.0.2")
        port.end_cut()
    assert 0 not in port.cut
    assert port.cut == list(range(1, 17))


def test_the_oldest_makes_room_for_a_new_address() -> None:
    port = Port(Places(3))
    for number in range(3):
        port.connect(number, f"10.0.0.{number}")
    assert not port.connect(7, "10.0.0.7")
    assert port.cut == [0]


def test_a_client_that_has_proven_its_role_makes_no_room() -> None:
    port = Port(Places(2))
    for number in range(2):
        port.connect(number, "10.0.0.1")
        assert not port.places.prove(port.of[number], "alice")
    assert "2 connections and accepts no more" in port.connect(2, "10.0.0.2")
    assert not port.cut
    port.places.leave(port.of.pop(0))
    assert not port.connect(3, "10.0.0.2")


def test_handshakes_have_a_quarter() -> None:
    port = Port(Places(8))
    for number in range(5):
        assert not port.connect(number, "10.0.0.1", shakes=True)
        port.end_cut()
    assert port.places.handshakes == 2
    assert port.cut == [0, 1, 2]
    port.places.shaken(port.of[3])
    assert not port.connect(9, "10.0.0.1", shakes=True)
    assert port.cut == [0, 1, 2]


def test_the_limit_of_an_address() -> None:
    port = Port(Places(9, of_address_max=2))
    assert not port.connect(0, "10.0.0.1")
    assert not port.connect(1, "10.0.0.1")
    assert "connections_per_address_max" in port.connect(2, "10.0.0.1")
    assert not port.connect(3, "10.0.0.2")
    port.places.leave(port.of.pop(0))
    assert not port.connect(4, "10.0.0.1")


def test_the_limit_of_a_role() -> None:
    port = Port(Places(9, of_role_max=1))
    for number in range(4):
        port.connect(number, "10.0.0.1")
    assert not port.places.prove(port.of[0], "alice")
    assert "connections_per_role_max" in port.places.prove(port.of[1], "alice")
    assert not port.places.prove(port.of[1], "ben")
    assert not port.places.prove(port.of[2], "")
    assert not port.places.prove(port.of[3], "")
    port.places.leave(port.of.pop(0))
    port.connect(5, "10.0.0.1")
    assert not port.places.prove(port.of[5], "alice")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.1.2.3:5", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6:77", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:9:9:9:9:78", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3:5", "10.1.2.3"),
        ("client-1:5", "client-1"),
        ("gone", "gone"),
    ],
)
def test_the_address_by_which_a_peer_is_counted(peer: str, address: str) -> None:
    assert address_of(peer) == address


_STEPS = st.tuples(st.sampled_from("cspl"), st.integers(0, 3), st.integers(0, 9))


@given(st.lists(_STEPS, max_size=60), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_the_counts_are_those_of_the_connections(
    steps: list[tuple[str, int, int]], most: int, of_address: int, of_role: int
) -> None:
    port = Port(Places(most, of_address_max=of_address, of_role_max=of_role))
    roles: dict[int, str] = {}
    addresses: dict[int, str] = {}
    for step, (what, which, pick) in enumerate(steps):
        numbers = list(port.of)
        number = numbers[pick % len(numbers)] if numbers else -1
        if what == "c":
            if not port.connect(step, f"10.0.0.{which}", shakes=bool(pick % 2)):
                addresses[step] = f"10.0.0.{which}"
            port.end_cut()
        elif what == "s" and number >= 0:
            port.places.shaken(port.of[number])
        elif what == "p" and number >= 0 and number not in roles:
            if not port.places.prove(port.of[number], f"r{which}"):
                roles[number] = f"r{which}"
        elif what == "l" and number >= 0:
            port.places.leave(port.of.pop(number))
        assert len(port.places) == len(port.of) <= most
        assert port.places.newcomers == sum(1 for each in port.of if each not in roles)
        assert not set(port.cut) & set(roles), "a client that has proven its role was cut"
        if of_address:
            assert all(
                count <= of_address
                for count in Counter(addresses[each] for each in port.of).values()
            )
        if of_role:
            assert all(
                count <= of_role
                for count in Counter(
                    role for each, role in roles.items() if each in port.of
                ).values()
            )
