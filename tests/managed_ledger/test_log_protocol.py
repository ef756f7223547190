"""How a log moves from one ledger to the next: inputs on the left, effects on the right."""

import pytest

from daybook.managed_ledger.protocol.log import (
    Create,
    Effect,
    Fence,
    LogProtocol,
    Seal,
    Submit,
    Switch,
)

SCENARIOS = {
    "appends go on while a ledger is created, and wait for the last confirmation": """
        append 2    -> submit 2
        roll        -> create
        append 1    -> submit 1
        confirmed 2 ->
        listed      ->
        append 3    ->
        confirmed 1 -> switch, seal, submit 3
        append 1    -> submit 1
        sealed      ->
        confirmed 4 ->
    """,
    "nothing pending: it switches at once": """
        roll        -> create
        listed      -> switch, seal
        append 1    -> submit 1
        sealed      ->
    """,
    "no second roll before the close of the first is confirmed": """
        roll        -> create
        roll        ->
        listed      -> switch, seal
        append 5    -> submit 5
        roll        ->
        confirmed 5 ->
        sealed      -> create
    """,
    "one roll is enough, however often it was due meanwhile": """
        append 1    -> submit 1
        roll        -> create
        roll        ->
        listed      ->
        roll        ->
        confirmed 1 -> switch, seal
        sealed      ->
        roll        -> create
    """,
    "a roll that fails leaves everything as it was": """
        append 1    -> submit 1
        roll        -> create
        failed      ->
        append 1    -> submit 1
        confirmed 2 ->
        roll        -> create
    """,
    "fenced while entries wait": """
        append 1    -> submit 1
        roll        -> create
        listed      ->
        append 2    ->
        lost        -> fence 2
        append 1    ->
        confirmed 1 ->
        roll        ->
        lost        ->
    """,
    "fenced while a ledger is created": """
        roll        -> create
        lost        -> fence 0
        listed      ->
    """,
    "idle: appends wait for the first ledger, and nothing is closed": """
        idle        ->
        roll        ->
        append 2    -> create
        append 1    ->
        roll        ->
        wanted      ->
        listed      -> switch, submit 3
        append 1    -> submit 1
        confirmed 4 ->
        roll        -> create
        listed      -> switch, seal
        sealed      ->
    """,
    "idle: a ledger is wanted, and is not tried again while nobody waits": """
        idle        ->
        wanted      -> create
        failed      ->
        wanted      -> create
        append 1    ->
        failed      -> create
        listed      -> switch, submit 1
        wanted      ->
    """,
    "idle: fenced while the first ledger is created": """
        idle        ->
        append 2    -> create
        lost        -> fence 2
        listed      ->
        failed      ->
        wanted      ->
    """,
    "idle: closed": """
        idle        ->
        stop        ->
        append 1    ->
        wanted      ->
    """,
    "closed": """
        append 1    -> submit 1
        stop        ->
        append 1    ->
        lost        ->
        sealed      ->
    """,
}


def rows(table: str) -> list[tuple[str, str]]:
    lines = [line.strip() for line in table.strip().splitlines()]
    return [(a.strip(), b.strip()) for a, _, b in (line.partition("->") for line in lines)]


def play(protocol: LogProtocol, line: str) -> list[Effect]:
    match line.split():
        case ["append", count]:
            return protocol.append(int(count))
        case ["confirmed", count]:
            return protocol.confirmed(int(count))
        case ["idle"]:
            protocol.restore(LogProtocol(idle=True).snapshot())
            return []
        case ["wanted"]:
            return protocol.want_ledger()
        case ["roll"]:
            return protocol.roll_due()
        case ["listed"]:
            return protocol.listed()
        case ["failed"]:
            return protocol.create_failed()
        case ["sealed"]:
            return protocol.sealed()
        case ["lost"]:
            return protocol.lost("why")
        case ["stop"]:
            return protocol.stop()
        case _:
            raise AssertionError(line)


def show(effects: list[Effect]) -> str:
    shown: list[str] = []
    for effect in effects:
        match effect:
            case Submit(count):
                shown.append(f"submit {count}")
            case Create():
                shown.append("create")
            case Switch():
                shown.append("switch")
            case Seal():
                shown.append("seal")
            case Fence(_, waiting):
                shown.append(f"fence {waiting}")
    return ", ".join(shown)


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(table: str) -> None:
    protocol = LogProtocol()
    played = [(line, show(play(protocol, line))) for line, _ in rows(table)]
    assert played == rows(table)


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_restored_machine_goes_on_alike(table: str) -> None:
    lines = rows(table)
    for cut in range(len(lines)):
        one, two = LogProtocol(), LogProtocol()
        for line, _ in lines[:cut]:
            play(one, line)
        two.restore(one.snapshot())
        for line, _ in lines[cut:]:
            assert play(one, line) == play(two, line)
            assert one.canonical() == two.canonical()
