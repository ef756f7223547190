"""Mutants of the ownership protocol: each breaks one rule."""

from tests.mutants.patch import Edit, Mutant

_OWNERSHIP = "daybook.broker.protocol.ownership"
_MODEL = "model"

OWNERSHIP = [
    Mutant(
        id="M62",
        rule="the loss of the session ends all ownership -> ownership is kept",
        module=_OWNERSHIP,
        name="OwnershipProtocol._drop_all",
        replacement=Edit(
            "            case BundleState.OWNED:\n                self._emit(DropTopics(bundle))",
            "            case BundleState.OWNED:\n                pass",
        ),
        caught_by=_MODEL,
    ),
    Mutant(
        id="O01",
        rule="a creation in doubt is looked up -> it counts as done",
        module=_OWNERSHIP,
        name="OwnershipProtocol.create_in_doubt",
        replacement=Edit(
            "        self._check(bundle)",
            "        self._hold(bundle, BundleState.OWNED)\n"
            "        self._emit(Answered(bundle, Answer.OURS))",
        ),
        caught_by=_MODEL,
    ),
    Mutant(
        id="O02",
        rule="a creation in doubt is looked up -> it counts as failed",
        module=_OWNERSHIP,
        name="OwnershipProtocol.create_in_doubt",
        replacement=Edit("self._check(bundle)", "self._forget(bundle, Answer.OTHERS)"),
        caught_by=_MODEL,
    ),
    Mutant(
        id="O03",
        rule="a broker without its guard drops everything -> only if it is out of contact, too",
        module=_OWNERSHIP,
        name="OwnershipProtocol.guard_seen",
        replacement=Edit("    if not stands:", "    if not stands and not self.contact:"),
        caught_by=_MODEL,
    ),
    Mutant(
        id="O04",
        rule="an answer to an older request is void -> it counts",
        module=_OWNERSHIP,
        name="OwnershipProtocol._state_at",
        replacement=Edit("held is not None and held.ask == ask", "held is not None"),
        caught_by=_MODEL,
    ),
]
