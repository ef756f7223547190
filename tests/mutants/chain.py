"""Rules of a chain of ledgers, and of its owners, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_LOG = "daybook.managed_ledger.protocol.log"
_TRIM = "daybook.managed_ledger.protocol.trim"
_STORMS = "storms:chain"

MUTANTS = [
    Mutant(
        id="K64",
        rule="a new ledger takes over after the old one's last confirmation -> at once",
        module=_LOG,
        name="LogProtocol._maybe_switch",
        replacement=Edit("or self.unconfirmed", ""),
        caught_by=_STORMS,
    ),
    Mutant(
        id="K65",
        rule="a log that may have another owner accepts no appends -> it goes on",
        module=_LOG,
        name="LogProtocol.lost",
        replacement=Edit("self.state = LogState.FENCED", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="K66",
        rule="one roll at a time: the next begins when the old ledger is closed -> before",
        module=_LOG,
        name="LogProtocol._maybe_roll",
        replacement=Edit("self.state is LogState.OPEN", 'self.state.name in ("OPEN", "SEALING")'),
        caught_by=_STORMS,
    ),
    Mutant(
        id="T01",
        rule="a ledger is deleted when its last entry is acknowledged -> its first",
        module=_TRIM,
        name="trimmable",
        replacement=Edit("ledger.last", "Position(ledger.ledger_id, 0)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="T02",
        rule="an empty ledger leaves the list when it is closed -> any ledger does",
        module="daybook.managed_ledger.ledger_list",
        name="set_sealed",
        replacement=Edit("if not sealed.entries:", "if sealed.entries < 2:"),
        caught_by=_STORMS,
    ),
]
