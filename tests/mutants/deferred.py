"""Rules of deferred sync, of the two protocols, and of racks, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_PROTOCOL = "daybook.bookie.ledger.protocol.deferred"
_LANES = "daybook.bookie.ledger.bookie_client"
_DIALECTS = "daybook.bookie.ledger.codecs"
_RACKS = "daybook.bookie.ledger.protocol.racks"
_DEFERRED = (
    "tests:tests/bookie/ledger/test_deferred_writer.py tests/bookie/ledger/test_bookie_client.py"
)
_STORMS = "storms:deferred"
_IN_V3 = "tests:tests/bookie/ledger/test_codecs.py"
_IN_RACKS = "tests:tests/bookie/ledger/test_racks.py tests/bookie/ledger/test_rack_sources.py"

MUTANTS = [
    Mutant(
        id="D01",
        rule="entries accepted on an ended connection are forgotten -> the next force counts them",
        module=_PROTOCOL,
        name="DeferredProtocol.lost",
        replacement=Edit(
            "    self._unforced.pop(bookie, None)\n    self._least.pop(bookie, None)\n", ""
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="D02",
        rule="a force counts for entries accepted before its request -> before its answer",
        module=_PROTOCOL,
        name="DeferredProtocol.forced",
        replacement=Edit(
            "self._forcing.pop(bookie, set())",
            "(self._least.pop(bookie, None), self._forcing.pop(bookie, set()))[1]"
            " | self._unforced.pop(bookie, set())",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="D03",
        rule="an entry is confirmed when it was forced -> when it was accepted",
        module="daybook.bookie.ledger.deferred_writer",
        name="DeferredLedgerWriter.added",
        replacement=Edit(
            "self._perform_deferred(self._deferred.acknowledged(bookie, first, count))",
            "self._perform_deferred(self._deferred.acknowledged(bookie, first, count))\n"
            "        LedgerWriter.added(self, bookie, first, count)",
        ),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D04",
        rule="a deferred writer is told of each ended connection -> only with requests under way",
        module=_LANES,
        name="LedgerChannel._fail_adds",
        replacement=Edit("(ended and self._deferred)", "False"),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D05",
        rule="a force is confirmed by its own answer -> by that of an abandoned one",
        module=_LANES,
        name="LedgerChannel.force_answered",
        replacement=Edit("forced is None or answer.request_id != self._force", "forced is None"),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D06",
        rule="a v3 answer confirms the operation -> the status of the request suffices",
        module=_DIALECTS,
        name="_status",
        replacement=Edit("Status.IO_ERROR", "Status.OK"),
        caught_by=_IN_V3,
    ),
    Mutant(
        id="M14 v3",
        rule="recovery adds carry the recovery flag -> in v3 they are plain adds",
        module=_DIALECTS,
        name="V3Codec.add",
        replacement=Edit("bool(U32.unpack_from(packet, 4)[0] & Flag.RECOVERY_ADD)", "False"),
        caught_by=_IN_V3,
    ),
    Mutant(
        id="M05 v3",
        rule="recovery reads fence -> in v3 they do not",
        module=_DIALECTS,
        name="V3Codec.read",
        replacement=Edit("fence_key=fence_key", "fence_key=None"),
        caught_by=_IN_V3,
    ),
    Mutant(
        id="D07",
        rule="each write set spans racks -> only the ensemble does",
        module=_RACKS,
        name="_Search._can_succeed",
        replacement=Edit("if len(racks) + free < self._least:", "if False:"),
        caught_by=_IN_RACKS,
    ),
    Mutant(
        id="D08",
        rule="an enforced rule postpones a change that would break it -> takes the best spare",
        module=_RACKS,
        name="Racks.replacement",
        replacement=Edit("if rule.enforced and least < wanted:", "if False:"),
        caught_by=_IN_RACKS,
    ),
    Mutant(
        id="D09",
        rule="a bookie that fails repeatedly is chosen last -> as soon as it answers",
        module="daybook.bookie.ledger.ensemble",
        name="Quarantine.trusted",
        replacement=Edit("and now >= self._distrusted_until.get(bookie, now)", ""),
        caught_by=_IN_RACKS,
    ),
    Mutant(
        id="D10",
        rule="a caller that waits for acceptance gets the writer's error -> waits forever",
        module="daybook.bookie.ledger.deferred_writer",
        name="DeferredLedgerWriter._withdraw",
        replacement=Edit("self._acknowledgement_waiters.release_all()", "pass"),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D11",
        rule="a bookie without unforced entries is not replaced when it fails -> it is",
        module="daybook.bookie.ledger.deferred_writer",
        name="DeferredLedgerWriter.add_failed",
        replacement=Edit("if self.pending_entries:", "if True:"),
        caught_by=_DEFERRED,
    ),
]
