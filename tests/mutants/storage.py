"""Rules of one bookie and its disk, broken one at a time.

The rules after a loss are in `limbo`, those of compaction in `space`, the bounds in `bounds`.
"""

from tests.mutants.patch import Edit, Mutant

_STORAGE = "tests:tests/bookie/storage"
_RECOVERY_TESTS = f"{_STORAGE}/test_recovery.py"
_FAILING_DISK = f"{_STORAGE}/test_failing_disk.py"
_CRASHES = f"{_STORAGE}/test_crashes.py -k whatever_operation"
_DISK = f"{_STORAGE}/test_syscalls.py"
_STORE = f"{_STORAGE}/test_store.py"
_HOST = "tests:tests/bookie/server/test_host.py"
_DIRECTORY = "daybook.bookie.storage.ledger_directory"
_LOG = "daybook.bookie.storage.log"
_RUNNER = "daybook.bookie.storage.directory_runner"
_RECOVERY = "daybook.bookie.storage.recovery"
_IDENTITY = "daybook.bookie.server.cookie_validation"

MUTANTS = [
    Mutant(
        id="M33b",
        rule="a fenced ledger rejects plain adds -> accepts those of known ledgers",
        module=_DIRECTORY,
        name="LedgerDirectory.add",
        replacement=Edit("        and not state.fenced\n", ""),
        caught_by=_STORE,
    ),
    Mutant(
        id="M35b",
        rule="a fence is answered when it is durable -> when it is accepted",
        module="daybook.bookie.storage.store",
        name="LedgerStore.fence",
        replacement=Edit("await directory.log.wait_durable(position)", "pass"),
        caught_by="tests:tests/bookie/server/test_durability.py",
    ),
    Mutant(
        id="M37",
        rule="after a loss only recovery may add, since a fence may be lost -> any writer may",
        module=_DIRECTORY,
        name="LedgerDirectory.update_writable",
        replacement=Edit("self.bookie_in_doubt or ", ""),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M39",
        rule="empty directories of a known bookie are rejected -> taken for a new bookie's",
        module=_IDENTITY,
        name="validate_cookies",
        replacement=Edit("    if known is None:\n", "    if known is None or local is None:\n"),
        caught_by=_HOST,
    ),
    Mutant(
        id="M40",
        rule="every directory carries the cookie -> one suffices",
        module=_IDENTITY,
        name="_check_missing",
        replacement=Edit("    if missing:\n", "    if missing and not found:\n"),
        caught_by=_HOST,
    ),
    Mutant(
        id="M41",
        rule="a loss of records is recorded before the bookie serves -> kept in memory",
        module=_RUNNER,
        name="DirectoryRunner.start",
        replacement=Edit("[*records, limbo]", "records"),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M43",
        rule="after a loss absence is unknown -> a missing entry is a no",
        module=_DIRECTORY,
        name="LedgerDirectory.absence",
        replacement=Edit(
            "if self.bookie_in_doubt or",
            "if self.bookie_in_doubt and status is StoreStatus.NO_LEDGER or",
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M43b",
        rule="after a loss absence is unknown -> a missing ledger is a no",
        module=_DIRECTORY,
        name="LedgerDirectory.absence",
        replacement=Edit(
            "if self.bookie_in_doubt or",
            "if self.bookie_in_doubt and status is StoreStatus.NO_ENTRY or",
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M43c",
        rule="after a loss absence is unknown -> a no for reads answered at once",
        module=_DIRECTORY,
        name="LedgerDirectory.try_read",
        replacement=Edit(
            "raise self.absence(StoreStatus.NO_ENTRY, state)",
            "raise StoreError(StoreStatus.NO_ENTRY)",
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M43d",
        rule="after a loss absence is unknown -> a no for reads with a look-up",
        module=_DIRECTORY,
        name="LedgerDirectory.read",
        replacement=Edit(
            "raise self.absence(StoreStatus.NO_ENTRY, state)",
            "raise StoreError(StoreStatus.NO_ENTRY)",
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M43e",
        rule="after a loss absence is unknown -> a no for reads of the LAC",
        module=_DIRECTORY,
        name="LedgerDirectory.read_lac",
        replacement=Edit(
            "raise self.absence(StoreStatus.NO_ENTRY, state)",
            "raise StoreError(StoreStatus.NO_ENTRY)",
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M44",
        rule="a damaged record is an I/O error -> no such entry",
        module="daybook.bookie.storage.segments",
        name="_checked",
        replacement=Edit("StoreStatus.IO_ERROR", "StoreStatus.NO_ENTRY"),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M44b",
        rule="only durable records are fetched from the disk -> those behind them, too",
        module="daybook.bookie.storage.segments",
        name="Segments.fetch",
        replacement=Edit("if end > self._end_of(first, durable)", "if False"),
        caught_by=f"{_STORAGE}/test_segments.py -k fetch",
    ),
    Mutant(
        id="M45",
        rule="a ledger is read in the directory where it was written -> in that of its id",
        module="daybook.bookie.storage.directories",
        name="Directories.directory_of",
        replacement=Edit(
            "self.homes.get(ledger_id)",
            "self.ledger_directories[ledger_id % len(self.ledger_directories)]",
        ),
        caught_by=_STORE,
    ),
    Mutant(
        id="M49",
        rule="a deleted ledger accepts no adds -> it is created again",
        module=_DIRECTORY,
        name="LedgerDirectory._refusal",
        replacement=Edit("state.deleted or (state.fenced and not recovery)", "False"),
        caught_by=_STORE,
    ),
    Mutant(
        id="M50",
        rule="a checkpoint covers the durable part of the log -> all accepted records",
        module=_RUNNER,
        name="DirectoryRunner._checkpoint",
        replacement=Edit("await self._log.wait_durable(position - 1)", "pass"),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="M52",
        rule="a batch counts if it is complete -> as far as it is there",
        module="daybook.bookie.storage.batches",
        name="read_batch",
        replacement=Edit(
            "whole and len(data) == header.size and len(records) == header.count", "True"
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M52b",
        rule="behind a damaged batch the next one is searched -> the segment ends there",
        module=_RECOVERY,
        name="_LogReplay.read_segment",
        replacement=Edit("await window.find_batch(header.creation_id, position)", "None"),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M52f",
        rule="a segment without a header that has a second batch existed -> it was torn",
        module=_RECOVERY,
        name="_LogReplay.read_segment",
        replacement=Edit("await window.looks_written(there + 1)", "False"),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M52g",
        rule="a one-batch segment without a header was never acknowledged -> it is lost",
        module=_RECOVERY,
        name="_LogReplay.read_segment",
        replacement=Edit("looks_written(there + 1)", "looks_written(there)"),
        caught_by=f"{_RECOVERY_TESTS} -k a_first_write_that_is_torn",
    ),
    Mutant(
        id="M52h",
        rule="an idle log gets a mark -> only with the next records",
        module=_LOG,
        name="Log._mark_when_idle",
        replacement=Edit("while not self._unmarked:", "while True:"),
        caught_by=f"{_STORAGE}/test_marks.py",
    ),
    Mutant(
        id="M52i",
        rule="the durable end of an idle log is in the index, too -> only in the log",
        module="daybook.bookie.storage.directory_runner",
        name="DirectoryRunner._committed",
        replacement=Edit("if not group.count and not group.flags:", "if False:"),
        caught_by=f"{_STORAGE}/test_marks.py -k is_not_denied",
    ),
    Mutant(
        id="M52c",
        rule="missing bytes below a mark were lost -> are a torn tail",
        module=_RECOVERY,
        name="_LogReplay._confirm",
        replacement=Edit("if mark > self._reached:", "if False:"),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="M53",
        rule="after a failed sync nothing is written -> it is tried again",
        module=_LOG,
        name="Log._write_groups",
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
        module="daybook.bookie.storage.disk",
        name="PreallocatedFile._append_direct",
        replacement=Edit("0 if pieces else os.RWF_DSYNC", "0"),
        caught_by=_DISK,
    ),
    Mutant(
        id="M55c",
        rule="a large append is synced as a whole -> only its last piece",
        module="daybook.bookie.storage.disk",
        name="PreallocatedFile._append_direct",
        replacement=Edit("        os.fdatasync(self._descriptor)\n", "        pass\n"),
        caught_by=_DISK,
    ),
    Mutant(
        id="M55d",
        rule="a read waits for accepted entries to be durable -> says that they are absent",
        module=_DIRECTORY,
        name="LedgerDirectory.read",
        replacement=Edit(
            "            await self.log.wait_durable(location[0])\n",
            "            if location[0] >= self.log.durable:\n"
            "                raise self.absence(StoreStatus.NO_ENTRY)\n",
        ),
        caught_by=_STORE,
    ),
    Mutant(
        id="M56b",
        rule="the LAC from entries does not go back -> the last one counts",
        module=_DIRECTORY,
        name="LedgerDirectory._accept",
        replacement=Edit("if lac > state.accepted_lac:", "if True:"),
        caught_by=_STORE,
    ),
    Mutant(
        id="M56c",
        rule="an explicit LAC does not go back -> the last one counts",
        module=_DIRECTORY,
        name="LedgerDirectory.write_lac",
        replacement=Edit("if lac > state.explicit_lac:", "if True:"),
        caught_by=_STORE,
    ),
    Mutant(
        id="M57",
        rule="an explicit LAC is in the log before its answer -> in memory only",
        module=_DIRECTORY,
        name="LedgerDirectory.write_lac",
        replacement=Edit(
            "state.explicit_position = self.log.append(",
            "state.explicit_position = (lambda *_: -1)(",
        ),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="M58",
        rule="a full bookie accepts recovery adds -> nothing",
        module=_DIRECTORY,
        name="LedgerDirectory._refusal",
        replacement=Edit("if not (recovery or self.writable):", "if not self.writable:"),
        caught_by=_FAILING_DISK,
    ),
    Mutant(
        id="M58b",
        rule="a full bookie fences -> refuses to",
        module=_DIRECTORY,
        name="LedgerDirectory._authorized",
        replacement=Edit(
            "    self._check_log()\n",
            "    self._check_log()\n"
            "    if not self.writable:\n"
            "        raise StoreError(StoreStatus.READ_ONLY)\n",
        ),
        caught_by=_FAILING_DISK,
    ),
    Mutant(
        id="B01",
        rule="records that the last process left in doubt are rewritten -> trusted",
        module=_RUNNER,
        name="DirectoryRunner.start",
        replacement=Edit("    records = self.replayed.doubtful\n", "    records = []\n"),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="B02",
        rule="a ledger's master key is a record before its first entry -> kept in memory",
        module=_DIRECTORY,
        name="LedgerDirectory.keep_master_key",
        replacement=Edit(
            "state.key_position = self.log.append(\n"
            "            Kind.MASTER_KEY, state.ledger_id, NO_ENTRY_ID, state.master_key, None\n"
            "        )\n",
            "pass\n",
        ),
        caught_by=_CRASHES,
    ),
    Mutant(
        id="BS50",
        rule="only its owner enters a new directory of a bookie -> everybody does",
        module="daybook.bookie.storage.disk",
        name="_make_directory",
        replacement=Edit("path.mkdir(mode, exist_ok=True)", "path.mkdir(exist_ok=True)"),
        caught_by=f"{_STORAGE}/test_disk.py -k only_its_owner",
    ),
]
