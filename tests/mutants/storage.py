"""Rules of one bookie and its disk, broken one at a time.

What it owes after a loss is in `limbo`, what it gives back in `space`, what it bounds in `bounds`.
"""

from tests.mutants.patch import Edit, Mutant

_STORAGE = "tests:tests/bookie/storage"
_BOOT = f"{_STORAGE}/test_boot.py"
_FAILING_DISK = f"{_STORAGE}/test_failing_disk.py"
_CRASHES = f"{_STORAGE}/test_crashes.py -k whatever_operation"
_DISK = f"{_STORAGE}/test_syscalls.py"
_STORE = f"{_STORAGE}/test_store.py"
_HOST = "tests:tests/bookie/server/test_host.py"
_VOLUME = "daybook.bookie.storage.volume"
_STATES = "daybook.bookie.storage.states"
_READS = "daybook.bookie.storage.reads"
_LOG = "daybook.bookie.storage.log"
_UPKEEP = "daybook.bookie.storage.upkeep"
_REPLAY = "daybook.bookie.storage.replay"
_IDENTITY = "daybook.bookie.server.cookie_validation"

MUTANTS = [
    Mutant(
        id="M33b",
        rule="a fenced ledger refuses plain adds -> those of known ledgers are taken",
        module=_VOLUME,
        name="Volume.add",
        replacement=Edit("        and not state.fenced\n", ""),
        caught_by=_STORE,
    ),
    Mutant(
        id="M35b",
        rule="a fence is answered when it is durable -> when it is accepted",
        module="daybook.bookie.storage.store",
        name="LedgerStore.fence",
        replacement=Edit("await volume.log.wait_durable(position)", "pass"),
        caught_by="tests:tests/bookie/server/test_durability.py",
    ),
    Mutant(
        id="M37",
        rule="after a loss nobody but recovery may add: the loss may be a fence -> all may",
        module=_VOLUME,
        name="Volume.judge",
        replacement=Edit("self.reads.doubt or ", ""),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M39",
        rule="empty directories of a known bookie are refused -> taken for those of a new one",
        module=_IDENTITY,
        name="validate_cookies",
        replacement=Edit("    if known is None:\n", "    if known is None or local is None:\n"),
        caught_by=_HOST,
    ),
    Mutant(
        id="M40",
        rule="every directory carries the cookie -> one is enough",
        module=_IDENTITY,
        name="_check_missing",
        replacement=Edit("    if missing:\n", "    if missing and not found:\n"),
        caught_by=_HOST,
    ),
    Mutant(
        id="M41",
        rule="that records were lost is durable before anybody is served -> kept in memory",
        module=_UPKEEP,
        name="Upkeep.start",
        replacement=Edit("[*records, limbo]", "records"),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M43",
        rule="after a loss absence is unknown -> absence of entries is a no",
        module=_READS,
        name="Reads.absent",
        replacement=Edit(
            "if self.doubt or", "if self.doubt and status is StoreStatus.NO_LEDGER or"
        ),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M43b",
        rule="after a loss absence is unknown -> absence of ledgers is a no",
        module=_READS,
        name="Reads.absent",
        replacement=Edit("if self.doubt or", "if self.doubt and status is StoreStatus.NO_ENTRY or"),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M43c",
        rule="after a loss absence is unknown -> is a no when a read is answered at once",
        module=_READS,
        name="Reads.try_read",
        replacement=Edit(
            "raise self.absent(StoreStatus.NO_ENTRY, state)",
            "raise StoreError(StoreStatus.NO_ENTRY)",
        ),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M43d",
        rule="after a loss absence is unknown -> is a no when a read had to look it up",
        module=_READS,
        name="Reads.read",
        replacement=Edit(
            "raise self.absent(StoreStatus.NO_ENTRY, state)",
            "raise StoreError(StoreStatus.NO_ENTRY)",
        ),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M43e",
        rule="after a loss absence is unknown -> is a no when the LAC is asked for",
        module=_READS,
        name="Reads.read_lac",
        replacement=Edit(
            "raise self.absent(StoreStatus.NO_ENTRY, state)",
            "raise StoreError(StoreStatus.NO_ENTRY)",
        ),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M44",
        rule="a record that is damaged is an I/O error -> no such entry",
        module="daybook.bookie.storage.segments",
        name="_checked",
        replacement=Edit("StoreStatus.IO_ERROR", "StoreStatus.NO_ENTRY"),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M45",
        rule="a ledger is looked for where it was written -> where its id says",
        module="daybook.bookie.storage.directories",
        name="Directories.volume_of",
        replacement=Edit(
            "self.homes.get(ledger_id)", "self.volumes[ledger_id % len(self.volumes)]"
        ),
        caught_by=_STORE,
    ),
    Mutant(
        id="M49",
        rule="a ledger that was deleted takes nothing any more -> it is made again",
        module=_VOLUME,
        name="Volume._refusal",
        replacement=Edit("state.deleted or (state.fenced and not recovery)", "False"),
        caught_by=_STORE,
    ),
    Mutant(
        id="M50",
        rule="a checkpoint covers what is durable in the log -> what is accepted",
        module=_UPKEEP,
        name="Upkeep._checkpoint",
        replacement=Edit("await self._log.wait_durable(position - 1)", "pass"),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="M52",
        rule="a batch counts if all of it is there -> as far as it is there",
        module="daybook.bookie.storage.batches",
        name="read_batch",
        replacement=Edit(
            "whole and len(data) == header.size and len(records) == header.count", "True"
        ),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M52b",
        rule="behind a damaged batch the next one is looked for -> the segment ends there",
        module=_REPLAY,
        name="_Walk.segment",
        replacement=Edit("await window.find_batch(header.creation_id, position)", "None"),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M52f",
        rule="a segment without a header that has a second batch was there -> it was torn",
        module=_REPLAY,
        name="_Walk.segment",
        replacement=Edit("await window.looks_written(there + 1)", "False"),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M52g",
        rule="a segment without a header that has one batch was never acknowledged -> it is lost",
        module=_REPLAY,
        name="_Walk.segment",
        replacement=Edit("looks_written(there + 1)", "looks_written(there)"),
        caught_by=f"{_BOOT} -k a_first_write_that_is_torn",
    ),
    Mutant(
        id="M52h",
        rule="a log that has become idle gets a mark -> not before the next records come",
        module=_LOG,
        name="Log._wait_for_group",
        replacement=Edit("self._limits.mark_after_s if self._unmarked else inf", "inf"),
        caught_by=f"{_STORAGE}/test_marks.py",
    ),
    Mutant(
        id="M52i",
        rule="how far an idle log is durable is in the index, too -> in the log alone",
        module="daybook.bookie.storage.upkeep",
        name="Upkeep._committed",
        replacement=Edit("if not group.count and not group.flags:", "if False:"),
        caught_by=f"{_STORAGE}/test_marks.py -k is_not_denied",
    ),
    Mutant(
        id="M52c",
        rule="what is missing below a mark was lost -> it is a torn tail",
        module=_REPLAY,
        name="_Walk._confirm",
        replacement=Edit("if mark > self._reached:", "if False:"),
        caught_by=_BOOT,
    ),
    Mutant(
        id="M53",
        rule="after an error of a sync nothing is written any more -> it is tried once more",
        module=_LOG,
        name="Log.run",
        replacement=Edit("self._fail(error)\n", "self._commit(group)\n"),
        caught_by=_FAILING_DISK,
    ),
    Mutant(
        id="M54",
        rule="the name of a new segment is synced -> only its bytes",
        module="daybook.bookie.storage.disk",
        name="FileAppender._start",
        replacement=Edit("    _sync_directory(os.path.dirname(path))\n", ""),
        caught_by=_DISK,
    ),
    Mutant(
        id="M55",
        rule="an add is answered when it is durable -> when it is accepted",
        module=_LOG,
        name="Log.append",
        replacement=Edit(
            "        group.dones.append(done)\n",
            "        done(StoreStatus.OK)\n",
        ),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="M55b",
        rule="an append returns when its bytes are synced -> when they are written",
        module="daybook.bookie.storage.growing",
        name="GrowingFile._append_direct",
        replacement=Edit("0 if pieces else os.RWF_DSYNC", "0"),
        caught_by=_DISK,
    ),
    Mutant(
        id="M55c",
        rule="a large append is synced -> its last piece is",
        module="daybook.bookie.storage.growing",
        name="GrowingFile._append_direct",
        replacement=Edit("        os.fdatasync(self._descriptor)\n", "        pass\n"),
        caught_by=_DISK,
    ),
    Mutant(
        id="M55d",
        rule="a read waits for what is accepted and not durable -> it says that it is not there",
        module=_READS,
        name="Reads.read",
        replacement=Edit(
            "            await self._log.wait_durable(place[0])\n",
            "            if place[0] >= self._log.durable:\n"
            "                raise self.absent(StoreStatus.NO_ENTRY)\n",
        ),
        caught_by=_STORE,
    ),
    Mutant(
        id="M56b",
        rule="the LAC that entries brought does not go back -> that of the last one counts",
        module=_VOLUME,
        name="Volume._accept",
        replacement=Edit("if lac > state.accepted_lac:", "if True:"),
        caught_by=_STORE,
    ),
    Mutant(
        id="M56c",
        rule="an explicit LAC does not go back -> the last one counts",
        module=_STATES,
        name="States.write_lac",
        replacement=Edit("if lac > state.explicit_lac:", "if True:"),
        caught_by=_STORE,
    ),
    Mutant(
        id="M57",
        rule="an explicit LAC is in the log before it is answered -> in memory only",
        module=_STATES,
        name="States.write_lac",
        replacement=Edit(
            "state.explicit_position = self._log.append(",
            "state.explicit_position = (lambda *_: -1)(",
        ),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="M58",
        rule="a bookie without room takes recovery adds -> nothing",
        module=_VOLUME,
        name="Volume._refusal",
        replacement=Edit("if not (recovery or self.writable):", "if not self.writable:"),
        caught_by=_FAILING_DISK,
    ),
    Mutant(
        id="M58b",
        rule="a bookie without room fences -> refuses to",
        module=_STATES,
        name="States._authorized",
        replacement=Edit(
            "    self._check_log()\n",
            "    self._check_log()\n"
            "    if not self._volume.writable:\n"
            "        raise StoreError(StoreStatus.READ_ONLY)\n",
        ),
        caught_by=_FAILING_DISK,
    ),
    Mutant(
        id="B01",
        rule="records that the last process left in doubt are written again -> taken as they are",
        module=_UPKEEP,
        name="Upkeep.start",
        replacement=Edit("    records = self.replayed.doubtful\n", "    records = []\n"),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="B02",
        rule="the master key of a ledger is a record in front of its first entry -> kept in memory",
        module=_STATES,
        name="States.keep_key",
        replacement=Edit(
            "state.key_position = self._log.append(\n"
            "            Kind.MASTER_KEY, state.ledger_id, NO_ENTRY_ID, state.master_key, None\n"
            "        )\n",
            "pass\n",
        ),
        caught_by=_CRASHES,
    ),
]
