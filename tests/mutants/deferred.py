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
        rule="what was taken on a connection that ended is forgotten -> the next force counts it",
        module=_PROTOCOL,
        name="DeferredProtocol._lost",
        replacement=Edit(
            "    self._unforced.pop(bookie, None)\n    self._least.pop(bookie, None)\n", ""
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="D02",
        rule="a force counts for what was taken when it was asked for -> when it is answered",
        module=_PROTOCOL,
        name="DeferredProtocol.step",
        replacement=Edit(
            "self._forcing.pop(bookie, set())",
            "(self._least.pop(bookie, None), self._forcing.pop(bookie, set()))[1]"
            " | self._unforced.pop(bookie, set())",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="D03",
        rule="an entry is confirmed when it was forced -> when it was taken",
        module="daybook.bookie.ledger.deferred_writer",
        name="DeferredLedgerWriter.added",
        replacement=Edit(
            "self._step(Acknowledged(bookie, first, count))",
            "self._step(Acknowledged(bookie, first, count))\n"
            "        LedgerWriter.added(self, bookie, first, count)",
        ),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D04",
        rule="a deferred writer hears of each connection that ends -> if something is under way",
        module=_LANES,
        name="LedgerChannel._fail_adds",
        replacement=Edit("(ended and self._deferred)", "False"),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D05",
        rule="a force is answered by an answer to itself -> to one that was given up before",
        module=_LANES,
        name="LedgerChannel.force_answered",
        replacement=Edit("forced is None or answer.request_id != self._force", "forced is None"),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D06",
        rule="a v3 answer says of the operation that it is done -> of the request is enough",
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
        rule="each write set spans racks -> the ensemble does",
        module=_RACKS,
        name="_Search._can_succeed",
        replacement=Edit("if len(racks) + free < self._least:", "if False:"),
        caught_by=_IN_RACKS,
    ),
    Mutant(
        id="D08",
        rule="an enforced rule postpones a change that breaks it -> takes the best spare",
        module=_RACKS,
        name="Racks.replacement",
        replacement=Edit("if rule.enforced and least < wanted:", "if False:"),
        caught_by=_IN_RACKS,
    ),
    Mutant(
        id="D09",
        rule="who fails again and again is chosen last -> as soon as it answers",
        module="daybook.bookie.ledger.ensemble",
        name="Quarantine.trusted",
        replacement=Edit("and now >= self._distrusted_until.get(bookie, now)", ""),
        caught_by=_IN_RACKS,
    ),
    Mutant(
        id="D10",
        rule="who waits until an entry is taken hears of a writer that stops -> waits for ever",
        module="daybook.bookie.ledger.deferred_writer",
        name="DeferredLedgerWriter._withdraw",
        replacement=Edit("self._acknowledgement_waiters.release_all()", "pass"),
        caught_by=_DEFERRED,
    ),
    Mutant(
        id="D11",
        rule="a bookie that has nothing to lose is not replaced when it fails -> it is",
        module="daybook.bookie.ledger.deferred_writer",
        name="DeferredLedgerWriter.add_failed",
        replacement=Edit("if self.pending_entries:", "if True:"),
        caught_by=_DEFERRED,
    ),
]
