"""Mutants of the shells of `managed_ledger`: opening a log, writing its list, keeping a cursor."""

from tests.mutants.patch import Edit, Mutant

_OPEN = "daybook.managed_ledger.open"
_LIST = "daybook.managed_ledger.ledger_list"
_CURSOR = "daybook.managed_ledger.cursor"
_MODEL = "model"

LOG = [
    Mutant(
        id="K60 shell",
        rule="a new owner recovers the last two ledgers and all without a length -> only the last",
        module=_OPEN,
        name="recover_tail",
        replacement=Edit("ledgers.owner, ids)", "ledgers.owner, ids[-1:])"),
        caught_by=_MODEL,
    ),
    Mutant(
        id="K61 shell",
        rule="a log is served when the list names its ledger -> while the list is written",
        module=_LIST,
        name="LedgerList._update",
        replacement=Edit(
            "await self._swap(value)", "self._context.nursery.start_soon(self._swap, value)"
        ),
        caught_by=_MODEL,
    ),
    Mutant(
        id="K62 shell",
        rule="the list is written by compare-and-swap -> blindly",
        module=_LIST,
        name="LedgerList._swap",
        replacement=Edit("set(self.path, value, self.version)", "set(self.path, value, -1)"),
        caught_by=_MODEL,
    ),
    Mutant(
        id="K63 shell",
        rule="a new owner fences the old one -> it opens the ledgers without recovery",
        module=_OPEN,
        name="_recover",
        replacement=Edit("recover=True", "recover=False"),
        caught_by=_MODEL,
    ),
    Mutant(
        id="K65 shell",
        rule="a list with another version ends the ownership -> it is overwritten",
        module=_LIST,
        name="LedgerList._swap",
        replacement=Edit(
            "                raise self._fenced() from None",
            "                self.version += 1\n                continue",
        ),
        caught_by=_MODEL,
    ),
    Mutant(
        id="K66 shell",
        rule="an empty ledger at the tail is fenced before it is dropped -> it is only read",
        module=_OPEN,
        name="_recover",
        replacement=Edit(
            "        reader = await context.retry_read(\n"
            "            lambda: context.client.open_stored(ledger_id, stored, recover=True)\n"
            "        )\n",
            "        reader = await context.client.open_stored(ledger_id, stored, recover=False)\n"
            "        if reader.last_add_confirmed >= 0:\n"
            "            reader = await context.client.open_stored(\n"
            "                ledger_id, stored, recover=True\n"
            "            )\n",
        ),
        caught_by=_MODEL,
    ),
    Mutant(
        id="M60 list",
        rule="a write of the list without an answer is looked up -> it counts as done",
        module=_LIST,
        name="LedgerList._swap",
        replacement=Edit(
            "            if not await self._was_applied(value):\n"
            "                await self._context.pause()\n"
            "                continue\n",
            "            self.version += 1\n",
        ),
        caught_by=_MODEL,
    ),
    Mutant(
        id="C69",
        rule="a new cursor begins at the position that was asked for -> at the end of the log",
        module=_CURSOR,
        name="Cursors._create",
        replacement=Edit("self.new(name, initial,", "self.new(name, self._ledgers.last_confirmed,"),
        caught_by=_MODEL,
    ),
    Mutant(
        id="C70 shell",
        rule="the record points to a ledger when its snapshot is durable -> when it was sent",
        module=_CURSOR,
        name="Cursor._ledger_with",
        replacement=Edit("        await writer.wait_confirmed(writer.last_add_pushed)\n", ""),
        caught_by=_MODEL,
    ),
    Mutant(
        id="C81 shell",
        rule="a receipt is given when the record is durable -> when it was sent",
        module=_CURSOR,
        name="Cursor._append",
        replacement=Edit("        await writer.wait_confirmed(writer.last_add_pushed)\n", ""),
        caught_by=_MODEL,
    ),
]
