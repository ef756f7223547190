"""Mutants of the ledger that only the model uses.

They change code that no storm runs: the synchronous half of the ledger client's shells, and the
ledger directory of a bookie.  `cases` has the set-up that finds each mutant.
"""

# pyright: reportPrivateUsage=false

from dataclasses import replace
from typing import Any

from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import Fragment, with_fragment
from tests.model.ledger.recoverer import _Run
from tests.mutants import ledger as catalogue
from tests.mutants.patch import Edit, Mutant

_MODEL = "model"
_RECOVERER = "daybook.bookie.ledger.recovery"
_WRITER = "daybook.bookie.ledger.writer"
_WRITE = "daybook.bookie.ledger.protocol.write"
_DIRECTORY = "daybook.bookie.storage.ledger_directory"

M05 = Mutant(
    id="M05 shell",
    rule="recovery reads fence -> only the request for the last entry fences",
    module=_RECOVERER,
    name="Recovery._perform",
    replacement=Edit("entry_id, callback, fence_key=self._master_key)", "entry_id, callback)"),
    caught_by=_MODEL,
)
_replace = _Run.replace


def _replace_and_publish(self: Any, ensemble: Any, failed: Any, *_: Any, **_named: Any) -> Any:
    changed = _replace(self, ensemble, failed)
    if changed is not None:
        marked = self._marked
        fragment = Fragment(self._attempt._protocol._writing.lac + 1, changed)
        fragments = with_fragment(marked.metadata.fragments, fragment)
        metadata = replace(marked.metadata, fragments=fragments)
        self._marked = StoredMetadata(metadata, marked.version + 1)
        self._out.written = metadata
    return changed


M07 = Mutant(
    id="M07",
    rule="a recovery writes its ensemble changes when it closes -> at once",
    module="tests.model.ledger.recoverer",
    name="_Run.replace",
    replacement=_replace_and_publish,
    caught_by=_MODEL,
)
M14 = Mutant(
    id="M14",
    rule="recovery adds carry the recovery flag -> plain adds",
    module=_RECOVERER,
    name="Recovery._frame",
    replacement=Edit("recovery=True, ", ""),
    caught_by=_MODEL,
)
M19 = Mutant(
    id="M19b",
    rule="acknowledgements of a replaced bookie are ignored -> they count",
    module=_WRITE,
    name="WriteProtocol.added_direct",
    replacement=Edit(
        "if position is None:\n        return 0",
        "if position is None:\n        position = 0",
    ),
    caught_by=_MODEL,
)
M22 = Mutant(
    id="M22 shell",
    rule="a new ensemble is used when it is in the metadata -> at once",
    module=_WRITER,
    name="LedgerWriter._start_change",
    replacement=Edit(
        "        self._context.nursery.start_soon(self._change_ensemble, wanted)",
        "        self._context.nursery.start_soon(self._change_ensemble, wanted)\n"
        "        self._change_settled(ensemble)",
    ),
    caught_by=_MODEL,
    also=(
        Mutant(
            id="M22 settled",
            rule="an ensemble change that was not requested is a bug -> it is ignored",
            module=_WRITE,
            name="WriteProtocol.ensemble_changed",
            replacement=Edit(
                "    assert self.state is State.REPLACING\n",
                "    if self.state is not State.REPLACING:\n        return []\n",
            ),
            caught_by=_MODEL,
        ),
    ),
)
M27 = Mutant(
    id="M27",
    rule="an entry carries the LAC -> its own id",
    module=_WRITER,
    name="LedgerWriter.flush",
    replacement=Edit("self.last_add_confirmed,", "self.last_add_pushed,"),
    caught_by=_MODEL,
)
M33 = Mutant(
    id="M33",
    rule="a fenced ledger refuses plain adds -> it stores them",
    module=_DIRECTORY,
    name="LedgerDirectory.add",
    replacement=Edit("    log = self.log\n", "    log = self.log\n    recovery = True\n"),
    caught_by=_MODEL,
)
M34 = Mutant(
    id="M34",
    rule="a fence of an unknown ledger creates a fenced ledger -> it is ignored",
    module=_DIRECTORY,
    name="LedgerDirectory.fence",
    replacement=Edit(
        "    state = self._authorized(ledger_id, master_key)\n",
        "    if ledger_id not in self.ledgers:\n"
        "        return -1\n"
        "    state = self._authorized(ledger_id, master_key)\n",
    ),
    caught_by=_MODEL,
)
M35 = Mutant(
    id="M35",
    rule="a fence is in the log before it is answered -> it is only in memory",
    module=_DIRECTORY,
    name="LedgerDirectory.fence",
    replacement=Edit(
        "state.fence_position = self.log.append(",
        "state.fence_position = (lambda *_: -1)(",
    ),
    caught_by=_MODEL,
)
M56 = Mutant(
    id="M56",
    rule="an entry that is added again keeps its first bytes -> it gets the last ones",
    module=_DIRECTORY,
    name="LedgerDirectory._add_again",
    replacement=Edit(
        "        self._add_known(state, entry_id, location, entry, recovery, done)\n    elif",
        "        self._accept(state, entry_id, entry, recovery, done)\n    elif",
    ),
    caught_by=_MODEL,
)
M03_M05 = replace(catalogue.M03, id="M03+M05 shell", caught_by=_MODEL, also=(M05,))
M34_M05 = replace(M34, id="M34+M05", also=(M05,))

LEDGER = [M03_M05, M05, M07, M14, M19, M22, M27, M33, M34, M34_M05, M35, M56]
