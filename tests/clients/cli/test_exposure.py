"""Which standalone clusters others can reach, and which are refused."""

from typing import Any

import pytest

from daybook.clients.cli import exposure
from daybook.clients.cli.directory import Choice, Locked, Saved
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.exposure import Exposure, decide_exposure

ALL = "0.0.0.0"


def decide(host: str | None = None, advertised: str | None = None, **options: Any) -> Exposure:
    given: dict[str, Any] = {"secure": None, "names": (), "before": None, "has_keys": False}
    return decide_exposure(host, advertised, **given | options)


def saved(security: Choice, names: tuple[str, ...] = (), locked: Locked = ()) -> Saved:
    return Saved("", 1, (), (), security, names=names, locked=locked)


@pytest.mark.parametrize(
    ("before", "secure", "host", "security", "warnings"),
    [
        # Only this machine: nothing is refused, and a choice is kept.
        (None, None, None, "none", 0),
        (None, None, "127.0.0.2", "none", 0),
        (None, None, "localhost", "none", 0),
        ("none", None, None, "none", 0),
        ("older", None, None, "older", 0),
        ("insecure", None, None, "insecure", 0),
        ("secure", None, None, "secure", 0),
        (None, True, None, "secure", 0),
        ("insecure", True, None, "secure", 0),
        ("older", True, None, "secure", 0),
        ("secure", False, None, "insecure", 1),
        # Others, too.
        (None, None, ALL, None, 0),
        ("none", None, ALL, None, 0),
        (None, None, "", "none", 0),  # as if it were not given
        (None, False, ALL, "insecure", 1),
        (None, True, ALL, "secure", 0),
        ("older", None, ALL, "older", 1),
        ("insecure", None, ALL, "insecure", 1),
        ("secure", None, ALL, "secure", 0),
        ("secure", False, ALL, "insecure", 2),
    ],
)
def test_the_table_of_decisions(
    before: Choice | None,
    secure: bool | None,
    host: str | None,
    security: Choice | None,
    warnings: int,
) -> None:
    last = None if before is None else saved(before)
    if security is None:
        with pytest.raises(UserError, match=r"--secure, or say with --insecure"):
            decide(host, before=last, secure=secure)
        return
    found = decide(host, before=last, secure=secure)
    assert (found.security, len(found.warnings)) == (security, warnings)


@pytest.mark.parametrize("host", ["::", "192.0.2.7"])
def test_any_address_that_is_not_loopback_is_refused(host: str) -> None:
    with pytest.raises(UserError, match="lock the cluster with --secure"):
        decide(host)


def test_a_cluster_whose_keys_are_left_is_never_opened_by_accident() -> None:
    assert decide(ALL, has_keys=True).security == "secure"
    assert decide(has_keys=True).security == "secure"


def test_all_addresses_are_advertised_as_one_that_others_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposure, "reachable_host", lambda: "me.example")
    assert decide(ALL, secure=True).advertised_host == "me.example"
    assert decide(ALL, "other", secure=True).advertised_host == "other"
    assert decide("127.0.0.1").advertised_host == "127.0.0.1"
    assert decide("127.0.0.1", "behind-a-proxy").advertised_host == "behind-a-proxy"
    monkeypatch.setattr(exposure, "reachable_host", lambda: None)
    with pytest.raises(UserError, match="with --advertised-host"):
        decide(ALL, secure=True)
    with pytest.raises(UserError, match="nobody can connect to that address"):
        decide(ALL, "::", secure=True)


def test_an_address_of_another_machine_is_no_place_to_listen() -> None:
    with pytest.raises(UserError, match="is no address of this machine"):
        decide("192.0.2.77", secure=True)
    with pytest.raises(UserError, match=r"--host no\.such\.host\.invalid"):
        decide("no.such.host.invalid")


def test_names_for_the_certificate_stay_until_others_are_given() -> None:
    assert decide(secure=True, names=("a", "b")).names == ("a", "b")
    assert decide(before=saved("secure", ("a",))).names == ("a",)
    assert decide(before=saved("secure", ("a",)), names=("b",)).names == ("b",)
    with pytest.raises(UserError, match="--san is for the certificate"):
        decide(names=("a",))


ALL_PARTS: Locked = ("brokers", "bookies", "zookeeper")


@pytest.mark.parametrize(
    ("before", "secure", "lock_storage", "storage"),
    [
        (None, True, False, True),
        (None, None, False, False),
        (saved("none"), True, False, True),
        (saved("older"), True, False, True),
        (saved("insecure"), True, False, True),
        (saved("secure", locked=ALL_PARTS), None, False, True),
        (saved("secure", locked=("brokers", "bookies")), None, False, True),
        (saved("secure", locked=ALL_PARTS), False, False, False),
        # Clients of these bookies have no certificates, so nothing locks them without a word.
        (saved("secure", locked=("brokers",)), None, False, False),
        (saved("secure", locked=("brokers",)), True, False, False),
        (saved("secure", locked=("brokers",)), None, True, True),
        (saved("secure", locked=ALL_PARTS), None, True, True),
        (None, True, True, True),
    ],
)
def test_bookies_and_zookeeper_are_locked_with_the_brokers(
    before: Saved | None, secure: bool | None, lock_storage: bool, storage: bool
) -> None:
    found = decide(before=before, secure=secure, lock_storage=lock_storage)
    assert found.storage is storage


def test_keys_without_a_state_lock_everything() -> None:
    assert decide(has_keys=True).storage


@pytest.mark.parametrize("secure", [None, False])
def test_bookies_are_not_locked_alone(secure: bool | None) -> None:
    with pytest.raises(UserError, match=r"--lock-storage is for a secure cluster"):
        decide(before=saved("none"), secure=secure, lock_storage=True)
