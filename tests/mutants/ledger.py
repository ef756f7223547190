"""Rules of one ledger, broken one at a time: placement, writing, reading, recovery, metadata."""

from tests.mutants.patch import Edit, Mutant

_PLACEMENT = "daybook.bookie.ledger.protocol.placement"
_READ = "daybook.bookie.ledger.protocol.read"
_RECOVER = "daybook.bookie.ledger.protocol.recover"
_UPDATE = "daybook.bookie.ledger.protocol.update"
_WRITE = "daybook.bookie.ledger.protocol.write"
_STORMS = "storms:ledger"
_OUTSIDE = "storms outside:ledger"  # without the rules about the state of the machines

M03 = Mutant(
    id="M03",
    rule="fenced when no ack quorum is left of any write set -> one fewer",
    module=_PLACEMENT,
    name="Quorums.is_covered",
    replacement=Edit("< self.ack", "<= self.ack"),
    caught_by=_STORMS,
)
M11 = Mutant(
    id="M11",
    rule="IN_RECOVERY is written before the first fence -> it is not",
    module=_UPDATE,
    name="mark_in_recovery",
    replacement=Edit(
        "metadata.in_recovery() if metadata.state is LedgerState.OPEN else Ruling.KEEP",
        "Ruling.KEEP",
    ),
    caught_by=_STORMS,
)

RECOVERY = [
    Mutant(
        id="M01",
        rule="silence and errors are unknown -> negative answers",
        module=_READ,
        name="Inquiry.answered",
        replacement=Edit("if verdict is Verdict.ABSENT:", "if True:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M02",
        rule="absent after WQ - AQ + 1 negative answers -> one fewer",
        module=_PLACEMENT,
        name="Quorums.absent",
        replacement=Edit("self.write - self.ack + 1", "max(1, self.write - self.ack)"),
        caught_by=_STORMS,
    ),
    M03,
    Mutant(
        id="M04",
        rule="the ledger is closed when recovered entries are written back -> when they were sent",
        module=_RECOVER,
        name="RecoverProtocol._proceed",
        replacement=Edit(
            "self._writing.lac == self._end - 1",
            "self._writing.last_add_pushed == self._end - 1",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M06",
        rule="recovery reads on from the LAC that it found -> ends there",
        module=_RECOVER,
        name="RecoverProtocol._start_reading",
        replacement=Edit(
            "self._next_read = self._base + 1",
            "self._next_read = self._end = self._base + 1",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M08",
        rule="recovery reads from the fragments as of its start -> from its own ensemble",
        module=_RECOVER,
        name="RecoverProtocol._inquire",
        replacement=Edit(
            "self._fragments, entry_id",
            "(*self._fragments[:-1], Fragment(self._last.first_entry_id, self.ensemble)), entry_id",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M09",
        rule="recovery begins no later than in the last fragment -> at the LAC that it found",
        module=_RECOVER,
        name="RecoverProtocol._start_reading",
        replacement=Edit("max(self._found_lac, self._last.first_entry_id - 1)", "self._found_lac"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M10",
        rule="recovery closes the version that it has marked -> any version",
        module=_UPDATE,
        name="close_by_recovery",
        replacement=Edit(
            "            return Ruling.KEEP\n",
            "            metadata = __import__('dataclasses').replace(\n"
            "                metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0\n"
            "            )\n"
            "            return metadata.closed_at(last_entry_id, length)\n",
        ),
        caught_by=_STORMS,
    ),
    M11,
    Mutant(
        id="M11+close anyway",
        rule="the pair: recovery does not mark, and overwrites newer metadata",
        module=M11.module,
        name=M11.name,
        replacement=M11.replacement,
        caught_by=_OUTSIDE,
        also=(
            Mutant(
                id="close anyway",
                rule="recovery closes the version that it has marked -> any that is not closed",
                module=_UPDATE,
                name="close_by_recovery",
                replacement=Edit(
                    "metadata.state is not LedgerState.IN_RECOVERY or version != marked_version",
                    "False",
                ),
                caught_by=_STORMS,
            ),
        ),
    ),
    Mutant(
        id="M12",
        rule="one copy suffices to recover an entry -> an ack quorum is needed",
        module=_RECOVER,
        name="RecoverProtocol._read_answered",
        replacement=Edit(
            "    if verdict is Verdict.FOUND:\n",
            "    if verdict is Verdict.FOUND:\n"
            "        copies = vars(self).setdefault('copies', {}).setdefault(entry_id, set())\n"
            "        copies.add(bookie)\n"
            "        if len(copies) < self.quorums.ack:\n"
            "            for other in inquiry.rest():\n"
            "                self._effects.append(FencingRead(other, entry_id))\n"
            "            return\n",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M13",
        rule="the ledger ends before the first absent entry -> later ones are taken",
        module=_RECOVER,
        name="RecoverProtocol._ends_before",
        replacement=Edit(
            "    self._end = entry_id\n",
            "    if self._writing.last_add_pushed + 1 == entry_id < max(self._found, default=0):\n"
            "        self._writing.lac = self._writing.last_add_pushed = entry_id\n"
            "        return\n"
            "    self._end = entry_id\n",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M15",
        rule="recovered entries carry the LAC found at the start -> one that moves",
        module=_RECOVER,
        name="RecoverProtocol.lac",
        replacement=Edit("self._base", "self._writing.lac"),
        caught_by=_STORMS,
    ),
]

WRITING = [
    Mutant(
        id="M18",
        rule="the confirmed entries are a prefix without a gap -> any with an ack quorum",
        module=_WRITE,
        name="WriteProtocol._advance",
        replacement=Edit(
            "(~confirmed & confirmed + 1).bit_length() - 1",
            "confirmed.bit_length()",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M19",
        rule="acknowledgements of a replaced bookie are ignored -> counted",
        module=_WRITE,
        name="WriteProtocol._set_ensemble",
        replacement=Edit(
            "_positions_in(ensemble)",
            "{**self._positions, **_positions_in(ensemble)}",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M20",
        rule="a change revokes the acknowledgements of the replaced bookie -> they are kept",
        module=_WRITE,
        name="WriteProtocol.ensemble_changed",
        replacement=Edit("self._held[position] = 0", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M21",
        rule="the LAC stands still while a change is in flight -> it moves",
        module=_WRITE,
        name="WriteProtocol._advance",
        replacement=Edit("if self.state is not _OPEN:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M23",
        rule="fragments are written while the ledger is open -> in any state",
        module=_UPDATE,
        name="change_ensemble",
        replacement=Edit(
            "            return Ruling.REFUSE\n        if metadata.last_fragment == wanted",
            "            metadata = __import__('dataclasses').replace(\n"
            "                metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0\n"
            "            )\n"
            "        if metadata.last_fragment == wanted",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M24",
        rule="a new fragment starts at LAC + 1 -> at the LAC",
        module=_WRITE,
        name="WriteProtocol._replace",
        replacement=Edit("self.lac + 1", "max(self.lac, 0)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M24b",
        rule="a new fragment starts at LAC + 1 -> behind the sent entries",
        module=_WRITE,
        name="WriteProtocol._replace",
        replacement=Edit("self.lac + 1", "self.last_add_pushed + 1"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M25",
        rule="a new bookie is sent all unconfirmed entries -> only later ones",
        module=_WRITE,
        name="WriteProtocol.ensemble_changed",
        replacement=Edit("self._send_pending(position)", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M28",
        rule="the writer closes while the ledger is open -> in any state",
        module=_UPDATE,
        name="close_by_writer",
        replacement=Edit(
            "if metadata.state is LedgerState.OPEN:\n",
            "if metadata.last_entry_id != last_entry_id or not metadata.closed:\n"
            "            metadata = __import__('dataclasses').replace(\n"
            "                metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0\n"
            "            )\n",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M29",
        rule="no entry is confirmed after the writer has stopped -> pending ones may be",
        module=_WRITE,
        name="WriteProtocol._withdraw",
        replacement=Edit("self.state = State.WITHDRAWN", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="R01",
        rule="a returning bookie is sent everything behind the LAC -> what no other bookie has",
        module=_WRITE,
        name="WriteProtocol._runs_without",
        replacement=Edit(
            "held >> entry_id - self.lac - 1 & 1",
            "any(held >> entry_id - self.lac - 1 & 1 for held in self._held)",
        ),
        caught_by=_STORMS,
    ),
]

METADATA = [
    Mutant(
        id="M59",
        rule="a write without an answer is in doubt -> it was not carried out",
        module=_UPDATE,
        name="UpdateProtocol.outcome_unknown",
        replacement=Edit("self._doubtful = True\n    return Read()", "return NotDone()"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="M60",
        rule="a write without an answer is in doubt -> it was carried out",
        module=_UPDATE,
        name="UpdateProtocol.outcome_unknown",
        replacement=Edit(
            "self._doubtful = True\n    return Read()",
            "assert self._wanted is not None\n"
            "    return Settled(self._wanted.metadata, self._wanted.version + 1)",
        ),
        caught_by=_STORMS,
    ),
]

MUTANTS = [*RECOVERY, *WRITING, *METADATA]
