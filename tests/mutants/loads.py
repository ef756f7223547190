"""Rules of cheap loads, broken one at a time: shared syncs and requests, short recoveries."""

from tests.mutants.patch import Edit, Mutant

_SYNCS = "daybook.wire.metadata.shared_sync"
_GROUPS = "daybook.wire.metadata.write_groups"
_RECOVER = "daybook.bookie.ledger.protocol.recover"
_KAZOO = "daybook.wire.metadata.kazoo_connection"
_KAZOO_TESTS = "tests:tests/wire/metadata/test_kazoo_connection.py"
_SYNC_TESTS = "tests:tests/wire/metadata/test_shared_sync.py"
_GROUP_TESTS = "tests:tests/wire/metadata/test_write_groups.py"
_CONFIG_TESTS = "tests:tests/broker/control/test_log_configs.py"
_IDS = "daybook.bookie.registry.ledger_ids"
_ID_TESTS = "tests:tests/bookie/registry/test_ledger_ids.py"
_REQUEST_TESTS = "tests:tests/wire/metadata/test_requests.py"
_RECOVERY_TESTS = "tests:tests/bookie/ledger/test_recovery_scenarios.py"
_LIST = "daybook.managed_ledger.ledger_list"
_TIMEOUT_TESTS = "tests:tests/bookie/ledger/test_bookie_client.py"
_CACHE_TESTS = "tests:tests/managed_ledger/test_entry_cache.py"
_LOAD_TESTS = "tests:tests/managed_ledger/test_load_requests.py"

MUTANTS = [
    Mutant(
        id="LR01",
        rule="a read shares a sync that was sent after it was asked for -> any that is under way",
        module=_SYNCS,
        name="SharedSyncs.read",
        replacement=Edit("sync.number <= sent_before", "False"),
        caught_by=_SYNC_TESTS,
    ),
    Mutant(
        id="LR02",
        rule="a read behind a sync counts in the session of the sync -> in any session",
        module=_SYNCS,
        name="SharedSyncs._read_behind",
        replacement=Edit("self._session_id() != sync.session_id", "False"),
        caught_by=_SYNC_TESTS,
    ),
    Mutant(
        id="LR03",
        rule="a failed sync fails all that share it -> they fail one after the other",
        module=_SYNCS,
        name="SharedSyncs.read",
        replacement=Edit("if sync.failed:", "if False:"),
        caught_by=_SYNC_TESTS,
    ),
    Mutant(
        id="LR04",
        rule="cursors are read in the session that wrote the list, or behind a sync -> in any",
        module="daybook.managed_ledger.ledger_list",
        name="LedgerList._read",
        replacement=Edit("if store.session_id == written_in:", "if True:"),
        caught_by="tests:tests/managed_ledger/test_followers.py",
    ),
    Mutant(
        id="LR05",
        rule="only reads decide where a ledger ends -> the last entries of bookies do",
        module=_RECOVER,
        name="RecoverProtocol._read_on",
        replacement=Edit(
            "while self._end is None and self._next_read <= last:",
            "if self._next_read > self._shown > NO_ENTRY: self._ends_before(self._next_read)\n"
            "    while self._end is None and self._next_read <= last:",
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="LR06",
        rule="recovery reads one entry beyond those that were shown -> many",
        module=_RECOVER,
        name="RecoverProtocol._read_on",
        replacement=Edit(
            "min(self._writing.lac + self._window, beyond)", "self._writing.lac + self._window"
        ),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="LR07",
        rule="writes whose group was refused are sent again, alone -> all are refused",
        module=_GROUPS,
        name="GroupedWrites._group_answered",
        replacement=Edit(
            "self._send_alone(write)",
            "write.result.settle(\n"
            "                    None, next(r for r in answer.value if isinstance(r, Exception)))",
        ),
        caught_by=_GROUP_TESTS,
    ),
    Mutant(
        id="LR08",
        rule="writes that wait for a lost connection have failed -> the next one has them",
        module=_GROUPS,
        name="GroupedWrites._answered",
        replacement=Edit("is_connection_loss(error)", "False"),
        caught_by=_GROUP_TESTS,
    ),
    Mutant(
        id="LR09",
        rule="writes that come while one is under way go together -> each alone",
        module=_GROUPS,
        name="OPERATIONS_MAX",
        replacement=1,
        caught_by=_GROUP_TESTS,
    ),
    Mutant(
        id="LR10",
        rule="the last entry that recovery has seen counts if the ledger ends there -> any entry",
        module="daybook.bookie.ledger.recovery",
        name="Recovery.seen",
        replacement=Edit(
            "self._last_entries.get(entry_id)",
            "self._last_entries[max(self._last_entries)] if self._last_entries else None",
        ),
        caught_by="tests:tests/bookie/ledger/test_recovery.py -k entry_that_was_seen",
    ),
    Mutant(
        id="LR11",
        rule="a request that the thread does not find in the queue wakes it -> it waits",
        module=_KAZOO,
        name="Waker.taken",
        replacement=Edit("self._woken = False", "pass"),
        caught_by=_KAZOO_TESTS,
    ),
    Mutant(
        id="LR12",
        rule="bytes of an earlier connection are forgotten -> they are read",
        module=_KAZOO,
        name="_Connection._fresh",
        replacement=Edit("is not self._connection._socket", "is None"),
        caught_by=_KAZOO_TESTS,
    ),
    Mutant(
        id="LR13",
        rule="a request counts as sent before it is -> it is forgotten if the connection breaks",
        module=_KAZOO,
        name="_Connection.send_all",
        replacement=Edit(
            "connection._write(bytes(frames), connect_timeout_s)",
            "sent = client._pending.copy(); client._pending.clear()\n"
            "        connection._write(bytes(frames), connect_timeout_s)\n"
            "        client._pending.extend(sent)",
        ),
        caught_by=_KAZOO_TESTS,
    ),
    Mutant(
        id="LR14",
        rule="a request without an answer ends in its time -> the timer does not know of it",
        module="daybook.wire.metadata.zookeeper",
        name="ZooKeeperStore._request",
        replacement=Edit("self._timer.deadline = deadline", "pass"),
        caught_by=_REQUEST_TESTS,
    ),
    Mutant(
        id="LR15",
        rule="a request ends in its own time -> all end with the first one",
        module="daybook.wire.metadata.zookeeper",
        name="ZooKeeperStore.end_late_requests",
        replacement=Edit("if each.deadline <= now_s", ""),
        caught_by=_REQUEST_TESTS,
    ),
    Mutant(
        id="LR16",
        rule="an answer that came before its callback calls it -> nobody does",
        module="daybook.wire.metadata.kazoo_answer",
        name="Answer.rawlink",
        replacement=Edit("if self._ready:", "if False:"),
        caught_by=_REQUEST_TESTS,
    ),
    Mutant(
        id="LR17",
        rule="an answer forgets the callbacks that it has called -> it keeps them, in a cycle",
        module="daybook.wire.metadata.kazoo_answer",
        name="Answer._answered",
        replacement=Edit(
            "self._call_back()",
            "kept = self._callbacks.copy(); self._call_back()\n    self._callbacks = kept",
        ),
        caught_by=_REQUEST_TESTS,
    ),
    Mutant(
        id="LR18",
        rule="a record that is gone keeps no other that shares its deletion -> all stay",
        module=_IDS,
        name="_delete_all",
        replacement=Edit("except (NoRecordError, NotEmptyError):", "except ():"),
        caught_by=_ID_TESTS,
    ),
    Mutant(
        id="LR19",
        rule="a record that comes during a deletion is in the next one -> it stays",
        module=_IDS,
        name="LedgerIds._delete_served",
        replacement=Edit("while self._served:", "if self._served:"),
        caught_by=_ID_TESTS,
    ),
    Mutant(
        id="LR20",
        rule="a topic that is loaded finds its pending batches by one read of all topics -> not",
        module="daybook.managed_ledger.sinks.pending",
        name="PendingNodes.shared_of_topic",
        replacement=Edit("topics[at] != encoded", "True"),
        caught_by="tests:tests/broker/sinks/test_faults.py -k owner_is_killed",
    ),
    Mutant(
        id="LR21",
        rule="the first log of a namespace gets its parent -> it cannot be created",
        module="daybook.managed_ledger.open",
        name="ManagedLedgers._create_record",
        replacement=Edit('await store.create(parent_of(path), b"", make_parents=True)', "pass"),
        caught_by="tests:tests/broker/control/test_namespaces_that_are_deleted.py",
    ),
    Mutant(
        id="LR22",
        rule="topics share a configuration while it is the same -> whatever their policies are",
        module="daybook.broker.topics.managed_ledger_factory",
        name="LogConfigs.for_policies",
        replacement=Edit("self._last[0] is not policies or ", ""),
        caught_by=_CONFIG_TESTS,
    ),
    Mutant(
        id="LR23",
        rule="a configuration follows the number of bookies -> it stays as it was",
        module="daybook.broker.topics.managed_ledger_factory",
        name="LogConfigs.for_policies",
        replacement=Edit(" or self._last[1] != quorums", ""),
        caught_by=_CONFIG_TESTS,
    ),
    Mutant(
        id="LR24",
        rule="a log has no cursors if the write of its list has found none -> whatever it found",
        module=_LIST,
        name="LedgerList._swap",
        replacement=Edit("not stat.children_count", "True"),
        caught_by=f"{_LOAD_TESTS} -k comes_while",
    ),
    Mutant(
        id="LR25",
        rule="a log that may have created a cursor looks for cursors again -> it has none",
        module=_LIST,
        name="LedgerList.guarded",
        replacement=Edit("self._childless = False", "pass"),
        caught_by=f"{_LOAD_TESTS} -k without_cursors",
    ),
    Mutant(
        id="LR26",
        rule="the last entry of a fenced bookie is not read again -> it is",
        module=_RECOVER,
        name="RecoverProtocol._read_on",
        replacement=Edit("if self._next_read in self._lengths:", "if False:"),
        caught_by=_RECOVERY_TESTS,
    ),
    Mutant(
        id="LR27",
        rule="topics are looked up where their namespace has partitioned topics -> nowhere",
        module="daybook.broker.namespaces.policies",
        name="Policies.partitioned",
        replacement=Edit("not above.stat.children_count", "True"),
        caught_by="tests:tests/broker/control/test_policies.py -k share_a_read",
    ),
    Mutant(
        id="LR28",
        rule="a fence that is not on the disk yet counts as a request -> there may be any number",
        module="daybook.bookie.server.session",
        name="Session.begin_call",
        replacement=Edit("self._calls += 1", "pass"),
        caught_by="tests:tests/bookie/server/test_durability.py -k bounded",
    ),
    Mutant(
        id="LR29",
        rule="tasks that a log has just begun end with it -> they run on",
        module="daybook.managed_ledger.log_tasks",
        name="LogTasks._hold",
        replacement=Edit("if self.cancelled:", "if False:"),
        caught_by="tests:tests/managed_ledger/test_log_tasks.py",
    ),
    Mutant(
        id="LR30",
        rule="a task that comes when the last one has ended runs -> there is no nursery for it",
        module="daybook.managed_ledger.log_tasks",
        name="LogTasks._run",
        replacement=Edit("self._nursery = None", "pass"),
        caught_by="tests:tests/managed_ledger/test_log_tasks.py",
    ),
    Mutant(
        id="LR44",
        rule="a log that has ended is forgotten -> it and its topic stay in memory",
        module="daybook.managed_ledger.log_tasks",
        name="LogTasks.cancel",
        replacement=Edit("self._on_end()", "pass"),
        caught_by="tests:tests/managed_ledger/test_freed_logs.py",
    ),
    Mutant(
        id="LR45",
        rule="a log that has ended while it was opened is forgotten -> it stays in memory",
        module="daybook.managed_ledger.open",
        name="ManagedLedgers.open",
        replacement=Edit("if not tasks.cancelled:", "if True:"),
        caught_by="tests:tests/managed_ledger/test_freed_logs.py -k while_it_is_opened",
    ),
    Mutant(
        id="LR46",
        rule="a bug in a task of a log that is freed already is logged -> nobody learns of it",
        module="daybook.managed_ledger.open",
        name="ManagedLedgers.open",
        replacement=Edit(
            '_log.error("%s had a bug at its end: please report it", name, exc_info=bug)', "pass"
        ),
        caught_by="tests:tests/managed_ledger/test_freed_logs.py -k freed_already",
    ),
    Mutant(
        id="LR31",
        rule="a channel that has asked something is looked at by the sweep -> it is not (adds)",
        module="daybook.bookie.ledger.bookie_client",
        name="LedgerChannel.add",
        replacement=Edit("connection.asked[self] = None", "pass"),
        caught_by=_TIMEOUT_TESTS,
    ),
    Mutant(
        id="LR32",
        rule="a channel that has asked something is looked at by the sweep -> it is not (reads)",
        module="daybook.bookie.ledger.bookie_client",
        name="LedgerChannel.read",
        replacement=Edit("self._connection.asked[self] = None", "pass"),
        caught_by=_TIMEOUT_TESTS,
    ),
    Mutant(
        id="LR33",
        rule="a channel that has asked something is looked at by the sweep -> it is not (blocks)",
        module="daybook.bookie.ledger.bookie_client",
        name="LedgerChannel.add_all",
        replacement=Edit("self._connection.asked[self] = None", "pass"),
        caught_by=_TIMEOUT_TESTS,
    ),
    Mutant(
        id="LR34",
        rule="a channel that has asked something is looked at by the sweep -> it is not (forces)",
        module="daybook.bookie.ledger.bookie_client",
        name="LedgerChannel.force",
        replacement=Edit("self._connection.asked[self] = None", "pass"),
        caught_by=_TIMEOUT_TESTS,
    ),
    Mutant(
        id="LR35",
        rule="a transaction of a group has the results of its operations -> those of the first",
        module=_GROUPS,
        name="GroupedWrites._group_answered",
        replacement=Edit("list(islice(results, len(write)))", "answer.value[: len(write)]"),
        caught_by=_GROUP_TESTS,
    ),
    Mutant(
        id="LR36",
        rule="the operations of transactions count for the bound of a group -> each counts as one",
        module=_GROUPS,
        name="GroupedWrites._next_group",
        replacement=Edit("operations += len(self._waiting[0])", "operations += 1"),
        caught_by=_GROUP_TESTS,
    ),
    Mutant(
        id="LR37",
        rule="an entry is kept for half a minute -> until the cache is full",
        module="daybook.managed_ledger.entry_cache",
        name="EntryCache.drop_old",
        replacement=lambda self, now_s: False,
        caught_by=_CACHE_TESTS,
    ),
    Mutant(
        id="LR38",
        rule="only old entries are dropped -> as many as have come by then, whatever is left",
        module="daybook.managed_ledger.entry_cache",
        name="EntryCache.drop_old",
        replacement=Edit("old = come[0][1] - self._dropped", "old = len(self._entries)"),
        caught_by=_CACHE_TESTS,
    ),
    Mutant(
        id="LR39",
        rule="memory is given back when few entries are left -> whenever many were dropped",
        module="daybook.managed_ledger.entry_cache",
        name="EntryCache.run",
        replacement=Edit("self.bytes < _FEW_BYTES <= most - self.bytes", "most > self.bytes"),
        caught_by=_CACHE_TESTS,
    ),
    Mutant(
        id="LR40",
        rule="a wrong path of a transaction is its caller's mistake -> that of the whole group",
        module="daybook.wire.metadata.zookeeper",
        name="ZooKeeperStore._commit",
        replacement=Edit(
            "[self._full(operation.path) for operation in operations]",
            "(self._full(operation.path) for operation in operations)",
        ),
        caught_by="tests:tests/wire/metadata/test_zookeeper.py -k wrong_path",
    ),
    Mutant(
        id="LR42",
        rule="a loss that is heard of late does not end the next contact -> it does, for good",
        module="daybook.wire.metadata.zookeeper",
        name="ZooKeeperStore._settle",
        replacement=Edit(" and request.contact == self._contacts", ""),
        caught_by=_REQUEST_TESTS,
    ),
    Mutant(
        id="LR43",
        rule="a write waits for none of an earlier contact -> it is lost with that",
        module="daybook.wire.metadata.zookeeper",
        name="ZooKeeperStore._state_changed",
        replacement=Edit("self._grouped = None", "pass"),
        caught_by=_REQUEST_TESTS,
    ),
    Mutant(
        id="LR41",
        rule="a broker drops old entries -> nobody does",
        module="daybook.broker.server",
        name="_Broker.start",
        replacement=Edit("nursery.start_soon(on.ledgers.cache.run)", "pass"),
        caught_by="tests:tests/broker/control/test_server.py -k half_a_minute",
    ),
]
