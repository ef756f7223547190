"""Rules that the shells keep, broken one at a time; their own tests must notice.

The shells are the code around the machines: the ledger client, the log of a topic, the broker and
the clients.
"""

from tests.mutants.patch import Edit, Mutant

_CATALOG = "daybook.bookie.ledger.metadata_store"
_LEDGER = "tests:tests/bookie/ledger"
_LOG = "tests:tests/managed_ledger"
_BURSTS = "tests:tests/bookie/ledger/test_writer_bookies.py"

MUTANTS = [
    Mutant(
        id="M16",
        rule="tailing a ledger fences nobody -> it is recovered",
        module="daybook.bookie.ledger.client",
        name="LedgerClient.open_stored",
        replacement=Edit("if recover and not stored", "if not stored"),
        caught_by=f"{_LEDGER}/test_reader.py",
    ),
    Mutant(
        id="M17 shell",
        rule="recovery uses the fragments that it has marked -> those read before",
        module="daybook.bookie.ledger.recovery",
        name="recover_ledger",
        replacement=Edit(
            "Recovery(context, ledger_id, marked, make_protocol)",
            "Recovery(context, ledger_id, StoredMetadata(stored.metadata, marked.version),"
            " make_protocol)",
        ),
        caught_by=f"{_LEDGER}/test_recovery.py",
    ),
    Mutant(
        id="M26",
        rule="a bookie occurs once in an ensemble -> a spare may be a member already",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory.replace",
        replacement=Edit("{*ensemble, ", "{*failed, "),
        caught_by=f"{_LEDGER}/test_ensemble.py",
    ),
    Mutant(
        id="M31",
        rule="a fenced writer stops -> it replaces the bookie",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter.add_refused",
        replacement=Edit(
            "    self.refused(LedgerFencedError(what) if fenced else WriterWithdrawnError(what))",
            "    self._handle(partial(self._protocol.add_failed, bookie))",
        ),
        caught_by=f"{_LEDGER}/test_writer_end.py",
    ),
    Mutant(
        id="M38",
        rule='an answer "unknown" is not a no -> it is',
        module="daybook.bookie.ledger.reader",
        name="verdict_of",
        replacement=Edit(
            "if status in _NEGATIVE", "if status in (*_NEGATIVE, Status.UNKNOWN_LEDGER_STATE)"
        ),
        caught_by=f"{_LEDGER}/test_reader.py {_LEDGER[6:]}/test_recovery.py",
    ),
    Mutant(
        id="M59 create",
        rule="a ledger found after a creation in doubt is ours if its token is -> is not",
        module=_CATALOG,
        name="LedgerMetadataStore._create",
        replacement=Edit("return await self._is_ours(path, token)", "return False"),
        caught_by=f"{_LEDGER}/test_writer_metadata.py::test_a_creation_whose_answer_was_lost",
    ),
    Mutant(
        id="M60 create",
        rule="a creation without an answer is looked up -> it was carried out",
        module=_CATALOG,
        name="LedgerMetadataStore._create",
        replacement=Edit("doubt.append(error)\n                continue", "return True"),
        caught_by=f"{_LEDGER}/test_writer_metadata.py::test_a_creation_whose_answer_was_lost",
    ),
    Mutant(
        id="M60 silence",
        rule="a change in doubt stays so when the store falls silent -> it counts as failed",
        module=_CATALOG,
        name="_remembered_doubt",
        replacement=Edit("if doubt:", "if False:"),
        caught_by="tests:tests/clients/ledgers/test_client.py -k stays_in_doubt",
    ),
    Mutant(
        id="M60 close",
        rule="an abandoned close without an answer is in doubt -> it counts as failed",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter.close",
        replacement=Edit("raise OutcomeUnknownError(", "raise StoreUnavailableError("),
        caught_by="tests:tests/clients/ledgers/test_writer.py -k close_without_an_answer",
    ),
    Mutant(
        id="M61 ledger",
        rule="a ledger is gone if the newest state has none -> if this server has none",
        module=_CATALOG,
        name="LedgerMetadataStore.read",
        replacement=Edit("await self.store.sync(path)", "pass"),
        caught_by=f"{_LOG}/test_followers.py",
    ),
    Mutant(
        id="M61",
        rule="the server catches up before a list is trusted -> any state is",
        module="daybook.managed_ledger.context",
        name="LogContext.read_newest",
        replacement=Edit("self.store.get_newest(path)", "self.store.get(path)"),
        caught_by=f"{_LOG}/test_followers.py",
    ),
    Mutant(
        id="HO60",
        rule="a read behind a sync counts only if the sync has a good answer -> always",
        module="daybook.wire.metadata.zookeeper",
        name="_BehindSync.exception",
        replacement=Edit("self._synced.exception or ", ""),
        caught_by="tests:tests/wire/metadata/test_behind_sync.py",
    ),
    Mutant(
        id="HO61",
        rule="ids become long when idgen-long comes -> not on hosts that found none",
        module="daybook.bookie.registry.ledger_ids",
        name="LedgerIds._touched",
        replacement=Edit("self._are_short = False", "pass"),
        caught_by="tests:tests/bookie/registry/test_ledger_ids.py -k until_it_changes",
    ),
    Mutant(
        id="HO61 race",
        rule="a watch that fires before the answer makes it old -> the answer counts",
        module="daybook.bookie.registry.ledger_ids",
        name="LedgerIds._read_are_short",
        replacement=Edit("short and fired == self._fired", "short"),
        caught_by="tests:tests/bookie/registry/test_ledger_ids.py -k before_the_answer",
    ),
    Mutant(
        id="K67b",
        rule="ledgers are kept for the stored positions of cursors -> for those in memory",
        module="daybook.managed_ledger.cursor",
        name="Cursor.held_from",
        replacement=Edit("min(self._stored, self._state.mark_delete)", "self._state.mark_delete"),
        caught_by=f"{_LOG}/test_trimming.py",
    ),
    Mutant(
        id="C74",
        rule="an entry that cannot be read now is read again -> it is skipped",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._serve_once",
        replacement=Edit(
            "    except LedgerError as error:\n",
            "    except LedgerError as error:\n"
            "        self._next = self._log.next_position(self._next or self._cursor.read_start)\n",
        ),
        caught_by="tests:tests/broker/test_subscriptions.py tests/broker/test_produce_consume.py",
    ),
    Mutant(
        id="P78",
        rule="sequence ids continue after a reconnect -> start at the broker's",
        module="daybook.clients.python.topic_producer",
        name="TopicProducer._register",
        replacement=Edit(
            "if not self._ever_attached:\n"
            "        self._first_new_id = success.last_sequence_id + 1\n"
            "        if self._settings.initial_sequence_id is None:",
            "if True:\n        if True:",
        ),
        caught_by="tests:tests/clients/python/test_producer.py",
    ),
    Mutant(
        id="WK01",
        rule="what is sent together leaves at the end of the block -> a turn later",
        module="daybook.wire.outbox",
        name="Flusher.__exit__",
        replacement=Edit("if self._held == 1:", "if False:"),
        caught_by="tests:tests/wire/test_outbox.py -k together",
    ),
    Mutant(
        id="WK02",
        rule="what a failed flush has left is sent by the flusher -> by nobody",
        module="daybook.wire.outbox",
        name="Flusher._release",
        replacement=Edit("if self._dirty and not self._held:", "if False:"),
        caught_by="tests:tests/wire/test_outbox.py -k fails",
    ),
    Mutant(
        id="WK03",
        rule="a block that has failed ends -> nobody wakes the flusher from then on",
        module="daybook.wire.outbox",
        name="Flusher.__exit__",
        replacement=Edit("self._release()", "error is None and self._release()"),
        caught_by="tests:tests/wire/test_outbox.py -k fails",
    ),
    Mutant(
        id="WK04",
        rule="a cancelled task leaves its place -> it is woken after its end",
        module="daybook.wire.parking",
        name="Parking._leave",
        replacement=Edit("self._task = None", "pass"),
        caught_by="tests:tests/wire/test_parking.py -k cancelled",
    ),
    Mutant(
        id="WK05",
        rule="a mark of an idle log is due a while after the last record -> after an earlier one",
        module="daybook.bookie.storage.log",
        name="Log._mark_when_idle",
        replacement=Edit(
            "await trio.sleep_until(due)",
            "self._idle_since -= await trio.sleep_until(due) or 10.0",
        ),
        caught_by="tests:tests/bookie/storage/test_marks.py -k after_the_last_record",
    ),
    Mutant(
        id="WK06",
        rule="a connection that has waited asks its socket, and sees the end -> it waits again",
        module="daybook.wire.connection",
        name="FrameConnection._fill",
        replacement=Edit("self._drained = False\n", "pass\n"),
        caught_by="tests:tests/wire/test_lone_frames.py -k an_end_that_came_with",
    ),
    Mutant(
        id="WB01",
        rule="only entries that nobody else holds show that a bookie lags -> a burst does, too",
        module="daybook.bookie.ledger.bookie_client",
        name="BookieConnection._lags",
        replacement=Edit(" + bookies.held_bytes", ""),
        caught_by=f"{_BURSTS} -k burst",
    ),
    Mutant(
        id="WB01 returned",
        rule="bookies that return are sent all that waits -> no more than the limit",
        module="daybook.bookie.ledger.bookie_client",
        name="BookieConnection._send_later",
        replacement=Edit(
            "self._lags(self._queue_bytes)",
            "self._queue_bytes > self._bookies.limits.queue_bytes_max",
        ),
        caught_by=f"{_BURSTS} -k that_return",
    ),
    Mutant(
        id="WB02",
        rule="a bookie far behind what is confirmed is given up -> its queue has no bound",
        module="daybook.bookie.ledger.bookie_client",
        name="BookieConnection._lags",
        replacement=lambda self, unsent_bytes: False,
        caught_by=f"{_BURSTS} -k lags_too_far",
    ),
    Mutant(
        id="WB03",
        rule="a confirmed entry is held no longer -> it counts on",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._confirm",
        replacement=Edit("self._context.bookies.held_bytes -= length - self.length", "pass"),
        caught_by=f"{_BURSTS} -k no_longer_held",
    ),
    Mutant(
        id="WB04",
        rule="a writer that has ended holds nothing -> its entries count on",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._withdraw",
        replacement=Edit(
            "self._context.bookies.held_bytes -= self._lengths[sent - 1] - self.length", "pass"
        ),
        caught_by=f"{_BURSTS} -k no_longer_held",
    ),
    Mutant(
        id="WB05",
        rule="entries that recoveries hold show no lag -> they do",
        module="daybook.bookie.ledger.recovery",
        name="Recovery._hold",
        replacement=lambda self, size: None,
        caught_by=f"{_BURSTS} -k many_recoveries",
    ),
    Mutant(
        id="WB06",
        rule="a recovered entry is held no longer -> it counts on",
        module="daybook.bookie.ledger.recovery",
        name="Recovery._perform",
        replacement=Edit("self._hold(-len(self._entries[entry_id].payload))", "pass"),
        caught_by=f"{_BURSTS} -k under_way",
    ),
    Mutant(
        id="WB07",
        rule="a recovery that has ended holds nothing -> its entries count on",
        module="daybook.bookie.ledger.recovery",
        name="Recovery.close",
        replacement=Edit("self._hold(-self._held_bytes)", "pass"),
        caught_by=f"{_BURSTS} -k recovery_that_fails",
    ),
]
