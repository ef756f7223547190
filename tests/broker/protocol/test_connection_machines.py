"""Sessions, the producers and consumers of a connection, access to a topic: scenario tables.

The left of each table has the calls, the right the actions that the machine asks for.
"""

from dataclasses import fields
from typing import Any

import pytest

from daybook.broker.protocol import consuming, producing, session
from daybook.broker.protocol.access import AccessMode, AccessProtocol
from daybook.broker.protocol.consuming import ConsumingProtocol
from daybook.broker.protocol.producing import ProducingProtocol, Sending
from daybook.broker.protocol.session import NOT_OFFERED, Admission, SessionProtocol
from daybook.wire.messages.registry import BaseType
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.calls import call

T = pb.BaseCommand

PRODUCING = {
    "open, close": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        close 1 101         -> Drain 1
        drained 1           -> Detach 1, Confirm 101
    """,
    "opening twice at once": """
        open 1 100          -> Attach 1 1
        open 1 101          -> Refuse 101 6
    """,
    "open already": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        open 1 101          -> Repeat 1 101
    """,
    "a larger epoch replaces": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        open 1 101 1        -> Detach 1, Attach 1 2
        opened 1 2          ->
        open 1 102 1        -> Repeat 1 102
    """,
    "opened again while it is being closed": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        close 1 101         -> Drain 1
        open 1 102          -> Detach 1, Confirm 101, Attach 1 2
        drained 1           ->
        opened 1 2          ->
    """,
    "closed before it was open": """
        open 1 100          -> Attach 1 1
        close 1 101         -> Abort 1 1
        open 1 102 7        -> Refuse 102 6
        close 1 103         ->
        open_failed 1 1     -> Confirm 101, Confirm 103
        open 1 104          -> Attach 1 2
        open_failed 1 1     ->
        open 1 105          -> Refuse 105 6
    """,
    "closed just as it was opened": """
        open 1 100          -> Attach 1 1
        close 1 101         -> Abort 1 1
        opened 1 1          -> Detach 1, Confirm 101
        opened 1 1          ->
        close 1 102         -> Confirm 102
    """,
    "closing twice, and closing what is not there": """
        close 1 99          -> Confirm 99
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        close 1 101         -> Drain 1
        close 1 102         ->
        drained 1           -> Detach 1, Confirm 101, Confirm 102
    """,
    "dropped while it drains": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        close 1 101         -> Drain 1
        dropped 1 0         -> Confirm 101
        drained 1           ->
    """,
    "too many": """
        open 1 100          -> Attach 1 1
        open 2 101          -> Attach 2 2
        open 3 102          -> Refuse 102 22
    """,
}

CONSUMING = {
    "open, close": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        close 1 101         -> Detach 1, Confirm 101
        close 1 102         -> Confirm 102
    """,
    "opening twice at once, open already": """
        open 1 100          -> Attach 1 1
        open 1 101          -> Refuse 101 6
        opened 1 1          ->
        open 1 102          -> Confirm 102
    """,
    "closed before it was open": """
        open 1 100          -> Attach 1 1
        close 1 101         -> Abort 1 1
        open 1 102          -> Refuse 102 6
        close 1 103         ->
        open_failed 1 1     -> Confirm 101, Confirm 103
        open 1 104          -> Attach 1 2
        open_failed 1 1     ->
        opened 1 2          ->
        open 1 105          -> Confirm 105
    """,
    "closed just as it was opened": """
        open 1 100          -> Attach 1 1
        close 1 101         -> Abort 1 1
        opened 1 1          -> Detach 1, Confirm 101
        opened 1 1          ->
        close 1 102         -> Confirm 102
    """,
    "dropped by the broker": """
        open 1 100          -> Attach 1 1
        opened 1 1          ->
        dropped 1           ->
        open 1 101          -> Attach 1 2
    """,
    "too many": """
        open 1 100          -> Attach 1 1
        open 2 101          -> Attach 2 2
        open 3 102          -> Refuse 102 22
    """,
}

BUSY, FENCED, NOT_NOW = int(pb.ProducerBusy), int(pb.ProducerFenced), int(pb.ServiceNotReady)

ACCESS = {
    "shared ones join": """
        join 1 SHARED                    -> Admit 1 None
        join 2 SHARED                    -> Admit 2 None
    """,
    "the epoch is stored before anybody is exclusive": f"""
        join 1 EXCLUSIVE                 -> StoreEpoch 1 0
        join 2 SHARED                    -> Refuse 2 {BUSY}
        join 3 EXCLUSIVE                 -> Refuse 3 {FENCED}
        epoch_stored 1                   -> Admit 1 0
        join 2 SHARED                    -> Refuse 2 {BUSY}
        left 1                           ->
        join 2 EXCLUSIVE                 -> StoreEpoch 2 1
        epoch_stored 2                   -> Admit 2 1
    """,
    "nobody becomes exclusive beside others": f"""
        join 1 SHARED                    -> Admit 1 None
        join 2 EXCLUSIVE                 -> Refuse 2 {FENCED}
    """,
    "who waits comes in turn, when everybody has left": """
        join 1 SHARED                    -> Admit 1 None
        join 2 SHARED                    -> Admit 2 None
        join 3 WAIT_FOR_EXCLUSIVE        -> Wait 3
        join 4 WAIT_FOR_EXCLUSIVE        -> Wait 4
        left 1                           ->
        left 2                           -> StoreEpoch 3 0
        epoch_stored 3                   -> Admit 3 0
        left 3                           -> StoreEpoch 4 1
        epoch_stored 4                   -> Admit 4 1
    """,
    "who has left does not wait any more": """
        join 1 EXCLUSIVE                 -> StoreEpoch 1 0
        epoch_stored 1                   -> Admit 1 0
        join 2 WAIT_FOR_EXCLUSIVE        -> Wait 2
        join 3 WAIT_FOR_EXCLUSIVE        -> Wait 3
        left 2                           ->
        left 1                           -> StoreEpoch 3 1
    """,
    "fencing expels and refuses everybody else": f"""
        join 1 EXCLUSIVE                 -> StoreEpoch 1 0
        epoch_stored 1                   -> Admit 1 0
        join 2 WAIT_FOR_EXCLUSIVE        -> Wait 2
        join 3 EXCLUSIVE_WITH_FENCING    -> Expel 1, Refuse 2 {FENCED}, StoreEpoch 3 1
        epoch_stored 3                   -> Admit 3 1
        join 1 EXCLUSIVE_WITH_FENCING 0  -> Refuse 1 {FENCED}
    """,
    "fencing while another is about to be exclusive": f"""
        join 1 EXCLUSIVE                 -> StoreEpoch 1 0
        join 2 EXCLUSIVE_WITH_FENCING    -> Refuse 1 {FENCED}, StoreEpoch 2 0
        epoch_stored 1                   ->
        epoch_stored 2                   -> Admit 2 0
    """,
    "an epoch that is over": f"""
        join 1 EXCLUSIVE                 -> StoreEpoch 1 0
        epoch_stored 1                   -> Admit 1 0
        left 1                           ->
        join 2 EXCLUSIVE                 -> StoreEpoch 2 1
        epoch_stored 2                   -> Admit 2 1
        left 2                           ->
        join 1 EXCLUSIVE 0               -> Refuse 1 {FENCED}
        join 2 EXCLUSIVE 1               -> StoreEpoch 2 1
    """,
    "the epoch cannot be stored": f"""
        join 1 EXCLUSIVE                 -> StoreEpoch 1 0
        join 2 WAIT_FOR_EXCLUSIVE        -> Wait 2
        epoch_not_stored 1               -> Refuse 1 {NOT_NOW}, StoreEpoch 2 0
    """,
}


def value(word: str) -> Any:
    if word in AccessMode.__members__:
        return AccessMode[word]
    return int(word)


def show(effect: Any) -> str:
    shown = [str(getattr(effect, f.name)) for f in fields(effect) if f.name != "reason"]
    return " ".join([type(effect).__name__, *shown])


def run(machine: Any, text: str) -> None:
    for line in text.strip().splitlines():
        left, _, right = line.partition("->")
        name, *words = left.split()
        effects = call(name, *map(value, words)).apply(machine)
        assert ", ".join(map(show, effects)) == right.strip(), line


@pytest.mark.parametrize("name", PRODUCING)
def test_the_producers_of_a_connection(name: str) -> None:
    run(ProducingProtocol(producers_max=2, ignore_s=30), PRODUCING[name])


@pytest.mark.parametrize("name", CONSUMING)
def test_the_consumers_of_a_connection(name: str) -> None:
    run(ConsumingProtocol(consumers_max=2), CONSUMING[name])


@pytest.mark.parametrize("name", ACCESS)
def test_access_to_a_topic(name: str) -> None:
    run(AccessProtocol(None), ACCESS[name])


@pytest.mark.parametrize(
    "machine",
    [ProducingProtocol(producers_max=9, ignore_s=30), ConsumingProtocol(consumers_max=9)],
)
def test_requests_to_close_that_wait_are_bounded(machine: Any) -> None:
    module: Any = producing if isinstance(machine, ProducingProtocol) else consuming
    machine.open(1, 100)
    waiting = list(range(200, 200 + module.CLOSE_REQUESTS_MAX))
    for request_id in waiting:
        assert not any(
            isinstance(effect, module.Confirm | module.Refuse)
            for effect in machine.close(1, request_id)
        )
    (refused,) = machine.close(1, 300)
    assert (refused.request_id, refused.code) == (300, pb.ServiceNotReady)
    assert machine.open_failed(1, 1) == [module.Confirm(each) for each in waiting]


def test_sends_are_taken_only_while_the_producer_is_open() -> None:
    machine = ProducingProtocol(producers_max=9, ignore_s=30)
    assert machine.sending(1, 0) is Sending.VIOLATION
    machine.open(1, 100)
    assert machine.sending(1, 0) is Sending.IGNORE
    machine.opened(1, 1)
    assert machine.sending(1, 0) is Sending.TAKE
    machine.close(1, 101)
    assert machine.sending(1, 0) is Sending.IGNORE


def test_sends_for_a_dropped_producer_are_ignored_for_a_while() -> None:
    machine = ProducingProtocol(producers_max=9, ignore_s=30)
    machine.open(1, 100)
    machine.opened(1, 1)
    machine.dropped(1, 5.0)
    assert machine.sending(1, 34.9) is Sending.IGNORE
    assert machine.sending(1, 35.0) is Sending.VIOLATION


# -- sessions


def opened() -> SessionProtocol:
    machine = SessionProtocol(("pulsar://us:6650",))
    machine.connect("daybook-test", 19, wants_broker_metadata=True)
    return machine


def test_the_greeting_agrees_on_the_smaller_version() -> None:
    machine = SessionProtocol(())
    assert machine.connect("c", 99) == [session.Greet(21)]
    machine = SessionProtocol(())
    assert machine.connect("c", 17) == [session.Greet(17)]


@pytest.mark.parametrize(
    ("version", "proxy_to", "code"),
    [
        (11, "", pb.UnsupportedVersionError),
        (19, "pulsar://them:6650", pb.NotAllowedError),
    ],
)
def test_clients_that_cannot_be_served_are_told_why(version: int, proxy_to: str, code: int) -> None:
    machine = SessionProtocol(("pulsar://us:6650",))
    (effect,) = machine.connect("c", version, proxy_to=proxy_to)
    assert isinstance(effect, session.Refuse)
    assert effect.code == code


def test_a_proxy_to_ourselves_is_fine() -> None:
    machine = SessionProtocol(("pulsar://us:6650",))
    assert machine.connect("c", 19, proxy_to="pulsar://us:6650") == [session.Greet(19)]


@pytest.mark.parametrize(
    ("version", "wants", "sends"),
    [("daybook-x", True, True), ("daybook-x", False, False), ("Pulsar-CPP", True, False)],
)
def test_broker_metadata_are_for_our_own_clients_that_want_them(
    version: str, wants: bool, sends: bool
) -> None:
    machine = SessionProtocol(())
    machine.connect(version, 19, wants_broker_metadata=wants)
    assert machine.sends_broker_metadata is sends


def test_silence_is_asked_about_once_and_then_taken_for_the_end() -> None:
    machine = opened()
    assert machine.ticked(100) == []
    assert machine.ticked(100) == [session.SendPing()]
    assert machine.ticked(101) == []
    assert machine.ticked(101) == [session.SendPing()]
    (closed,) = machine.ticked(101)
    assert isinstance(closed, session.Close)
    assert machine.ticked(101) == []


def test_silence_says_nothing_while_we_do_not_read() -> None:
    machine = opened()
    machine.ticked(100)
    assert machine.ticked(100, reading=False) == []
    assert machine.ticked(100) == [session.SendPing()]
    assert machine.ticked(100, reading=False) == []
    assert machine.ticked(100) == [session.SendPing()]


def test_who_does_not_greet_in_time_is_cut() -> None:
    (closed,) = SessionProtocol(()).greeting_overdue()
    assert isinstance(closed, session.Close)
    assert opened().greeting_overdue() == []


def test_nothing_but_connect_may_come_first_and_connect_only_then() -> None:
    machine = SessionProtocol(())
    for number in BaseType.values():
        expected = Admission.SERVE if number == T.CONNECT else Admission.VIOLATION
        assert machine.admit(number) is expected
    assert opened().admit(T.CONNECT) is Admission.VIOLATION


def test_every_command_is_served_refused_or_not_for_clients_to_send() -> None:
    machine = opened()
    from_brokers = {
        name for name, number in BaseType.items() if machine.admit(number) is Admission.VIOLATION
    }
    assert from_brokers == {
        "CONNECT",  # a second one
        "CONNECTED",
        "SEND_RECEIPT",
        "SEND_ERROR",
        "MESSAGE",
        "SUCCESS",
        "ERROR",
        "PRODUCER_SUCCESS",
        "PARTITIONED_METADATA_RESPONSE",
        "LOOKUP_RESPONSE",
        "CONSUMER_STATS_RESPONSE",
        "REACHED_END_OF_TOPIC",
        "GET_LAST_MESSAGE_ID_RESPONSE",
        "ACTIVE_CONSUMER_CHANGE",
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        "GET_SCHEMA_RESPONSE",
        "AUTH_CHALLENGE",
        "AUTH_RESPONSE",  # to a challenge that was not sent
        "ACK_RESPONSE",
        "GET_OR_CREATE_SCHEMA_RESPONSE",
        "NEW_TXN_RESPONSE",
        "ADD_PARTITION_TO_TXN_RESPONSE",
        "ADD_SUBSCRIPTION_TO_TXN_RESPONSE",
        "END_TXN_RESPONSE",
        "END_TXN_ON_PARTITION_RESPONSE",
        "END_TXN_ON_SUBSCRIPTION_RESPONSE",
        "TC_CLIENT_CONNECT_RESPONSE",
        "WATCH_TOPIC_LIST_SUCCESS",
        "WATCH_TOPIC_UPDATE",
        "TOPIC_MIGRATED",
        "SCALABLE_TOPIC_UPDATE",
        "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE",
        "SCALABLE_TOPIC_ASSIGNMENT_UPDATE",
        "WATCH_SCALABLE_TOPICS_UPDATE",
        "WATCH_TC_ASSIGNMENTS_UPDATE",
    }
    assert {n for n in BaseType.values() if machine.admit(n) is Admission.REFUSE} == NOT_OFFERED


# -- authentication

REFUSE = f"Refuse {int(pb.AuthenticationError)}"
AUTHENTICATION = {
    "the credentials are right": """
        connect              -> CheckCredentials
        proven alice         -> Greet 19
    """,
    "the credentials are wrong": f"""
        connect              -> CheckCredentials
        not_proven 3         -> {REFUSE}
        proven alice         ->
        not_proven 3         ->
    """,
    "the client leaves while they are checked": """
        connect              -> CheckCredentials
        ended                ->
        proven alice         ->
        expired              ->
    """,
    "the check takes too long": """
        connect              -> CheckCredentials
        greeting_overdue     -> Close
        proven alice         ->
    """,
    "the token is revoked while the session is open": f"""
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        revoked              -> {REFUSE}
        revoked              ->
        expired              ->
    """,
    "the token is revoked while the client renews it": f"""
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        answered             -> CheckCredentials
        revoked              -> {REFUSE}
        proven alice         ->
    """,
    "they expire, and the client renews them, twice": """
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        answered             -> CheckCredentials
        proven alice         ->
        expired              -> Challenge
        answered             -> CheckCredentials
        proven alice         ->
    """,
    "they expire, and the client cannot renew them": f"""
        connect              -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> {REFUSE}
        expired              ->
    """,
    "they expire twice without an answer": f"""
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        expired              -> {REFUSE}
    """,
    "they expire again while the answer is checked": f"""
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        answered             -> CheckCredentials
        expired              -> {REFUSE}
        proven alice         ->
    """,
    "the answer is that of another role": f"""
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        answered             -> CheckCredentials
        proven ben           -> {REFUSE}
    """,
    "the answer is wrong": f"""
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        answered             -> CheckCredentials
        not_proven 3         -> {REFUSE}
    """,
    "the client leaves before it answers": """
        connect renews       -> CheckCredentials
        proven alice         -> Greet 19
        expired              -> Challenge
        ended                ->
        answered             ->
    """,
}


@pytest.mark.parametrize("name", AUTHENTICATION)
def test_the_credentials_of_a_session(name: str) -> None:
    machine = SessionProtocol((), authenticates=True)
    for line in AUTHENTICATION[name].strip().splitlines():
        left, _, right = line.partition("->")
        match left.split():
            case ["connect", *more]:
                effects = machine.connect("c", 19, renews=bool(more))
            case ["proven", role]:
                effects = machine.proven(role)
            case ["not_proven", code]:
                effects = machine.not_proven(int(code), "wrong")
            case [call_name]:
                effects = getattr(machine, call_name)()
            case _:
                raise AssertionError(line)
        assert ", ".join(map(show, effects)) == right.strip(), line


def test_nothing_is_served_while_the_credentials_are_checked() -> None:
    machine = SessionProtocol((), authenticates=True)
    machine.connect("c", 19)
    assert {machine.admit(number) for number in BaseType.values()} == {Admission.VIOLATION}
    assert "before it was told" in machine.violation(T.PRODUCER)
    machine.ticked(7)
    assert machine.ticked(7) == [], "a client that waits is not asked for a sign of life"


def test_an_answer_is_admitted_only_to_a_challenge_and_once() -> None:
    machine = SessionProtocol((), authenticates=True)
    machine.connect("c", 19, renews=True)
    machine.proven("alice")
    assert machine.admit(T.AUTH_RESPONSE) is Admission.VIOLATION
    machine.expired()
    assert machine.admit(T.AUTH_RESPONSE) is Admission.SERVE
    assert machine.admit(T.SEND) is Admission.SERVE, "messages go on while credentials are renewed"
    machine.answered()
    assert machine.admit(T.AUTH_RESPONSE) is Admission.VIOLATION
    machine.proven("alice")
    assert machine.admit(T.AUTH_RESPONSE) is Admission.VIOLATION
