"""Rules of exactly-once sinks, broken one at a time (`managed_ledger.protocol.sink`)."""

from tests.mutants.patch import Edit, Mutant

_RULES = "daybook.managed_ledger.protocol.sink"
_COMMIT = "daybook.managed_ledger.sinks.commit"
_STORED = "daybook.managed_ledger.sinks.stored"
_PROGRESS = "daybook.managed_ledger.sinks.progress"
_TOPIC = "daybook.broker.sinks.topic_sinks"
_TOPICS = "daybook.broker.topics.topics"
_HTTP = "daybook.clients.python.http"
_STAGE = "daybook.clients.spark.stage"
_STAGING = "daybook.managed_ledger.sinks.staging"
_BY_HTTP = "tests:tests/clients/python/test_http.py"
_BY_ONCE = "tests:tests/clients/spark/test_once.py"
_BY_TABLE = "tests:tests/managed_ledger/test_sink_protocol.py"
_BY_FORMATS = "tests:tests/managed_ledger/test_sink_formats.py"
_BY_BATCHES = "tests:tests/broker/sinks/test_batches.py"
_BY_LIMITS = "tests:tests/broker/sinks/test_limits.py"
_BY_BLOCKED = "tests:tests/broker/sinks/test_blocked.py"
_BY_FAULTS = "tests:tests/broker/sinks/test_faults.py"
# In the simulator, whose audit checks X1 to X5 at each step.
_BY_STORIES = "tests:tests/simulation/test_sink_stories.py"
_BY_POINTS = "tests:tests/simulation/test_sink_points.py"

MUTANTS = [
    Mutant(
        id="SK01",
        rule="a commit is known by its shares -> by its batch id",
        module=_RULES,
        name="SinkRecord.judge",
        replacement=Edit(
            "return Verdict.DONE if same_shares else Verdict.REPLAY", "return Verdict.DONE"
        ),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK02",
        rule="a lower batch is refused -> it is committed",
        module=_RULES,
        name="SinkRecord.judge",
        replacement=Edit("if batch.batch_id < self.batch_id:", "if False:"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK03",
        rule="a batch waits until the one before is APPLIED -> it does not",
        module=_RULES,
        name="SinkRecord.judge",
        replacement=Edit("if self.unapplied:", "if False:"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK04",
        rule="another query is refused -> it is not",
        module=_RULES,
        name="SinkRecord.check_source",
        replacement=Edit("source.query_id != self.source.query_id", "False"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK05",
        rule="a copied checkpoint is refused -> it is not",
        module=_RULES,
        name="SinkRecord.check_source",
        replacement=Edit("source.checkpoint != self.source.checkpoint", "False"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK06",
        rule="a batch with an abandoned attempt is refused -> it is not",
        module=_RULES,
        name="SinkRecord._check_attempts",
        replacement=Edit("if gone:", "if False:"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK07",
        rule="attempts of a committed batch are not abandoned -> they are",
        module=_RULES,
        name="SinkRecord.abandon",
        replacement=Edit("if self.unapplied:", "if False:"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK08",
        rule="a batch is APPLIED when all its partitions are -> when one is",
        module=_RULES,
        name="SinkRecord.mark_applied",
        replacement=Edit("not set(self.in_batch) <= set(marked)", "not marked"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK09",
        rule="a replay with another number of rows is refused -> it is not",
        module=_RULES,
        name="SinkRecord.check_replay",
        replacement=Edit("if rows != self.rows:", "if False:"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK10",
        rule="a sink is forgotten when its batch is applied -> at any time",
        module=_RULES,
        name="SinkRecord.forget",
        replacement=Edit("if self.unapplied:", "if False:"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK11",
        rule="a blocked batch becomes COMMITTED with the last skip -> with the first",
        module=_RULES,
        name="SinkRecord.skip",
        replacement=Edit(
            "SinkState.BLOCKED if blocked else SinkState.COMMITTED", "SinkState.COMMITTED"
        ),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK12",
        rule="time alone deletes staging after a week -> at once",
        module=_RULES,
        name="SinkRecord.may_be_abandoned",
        replacement=Edit("age_ms >= WEEK_MS", "age_ms >= 0"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK13",
        rule="appends go on behind what the topic has -> they begin anew",
        module=_RULES,
        name="next_to_append",
        replacement=Edit("max(share.first, highest + 1)", "share.first"),
        caught_by=_BY_TABLE,
    ),
    Mutant(
        id="SK14",
        rule="a sink that applies holds the log -> it does not",
        module=_PROGRESS,
        name="held_by_sinks",
        replacement=Edit("if progress.applying:", "if False:"),
        caught_by=_BY_FORMATS,
    ),
    Mutant(
        id="SK15",
        rule="a commit whose answer was lost is read again -> it counts as failed",
        module=_COMMIT,
        name="_is_same",
        replacement=Edit(
            "if found.sink_id != following.sink_id or found.batch_id != following.batch_id:",
            "if True:",
        ),
        caught_by=_BY_FAULTS,
    ),
    Mutant(
        id="SK16",
        rule="a new owner counts the entries behind the progress -> it believes the progress",
        module=_TOPIC,
        name="TopicSinks._count",
        replacement=Edit("if not progress.applying:", "if True:"),
        caught_by=_BY_FAULTS,
    ),
    Mutant(
        id="SK17",
        rule="staging is deleted after its attempt is in the record -> before",
        module=_COMMIT,
        name="Sinks.abandon",
        replacement=Edit(
            "following = stored.record.abandon([share.attempt for share in shares], named)",
            "following = stored.record.abandon([share.attempt for share in shares], named)\n"
            "        for share in shares:\n"
            "            await self.ledgers.delete(share.ledger_id, name, share.attempt)",
        ),
        caught_by=_BY_FAULTS,
    ),
    Mutant(
        id="SK18",
        rule="a topic that was made anew blocks the batch -> it takes the batch",
        module=_TOPIC,
        name="TopicSinks._why_never",
        replacement=Edit("if self._topic().log.created != pending.created:", "if False:"),
        caught_by=_BY_BLOCKED,
    ),
    Mutant(
        id="SK19",
        rule="a topic with a pending batch is deleted only by force -> always",
        module=_TOPICS,
        name="Topics.delete",
        replacement=Edit(
            "if not force and topic.sinks is not None and await topic.sinks.has_pending():",
            "if False:",
        ),
        caught_by=_BY_BLOCKED,
    ),
    Mutant(
        id="SK20",
        rule="a commit checks that its staging exists in the same transaction -> before it",
        module=_COMMIT,
        name="Sinks._commit",
        replacement=Edit(
            "ledger_ids = [found for found, _ in ends if ledger_id >= 0]", "ledger_ids = []"
        ),
        caught_by=_BY_FAULTS,
    ),
    Mutant(
        id="SK21",
        rule="the progress is durable before the first entry -> it is stored behind it",
        module=_TOPIC,
        name="TopicSinks._apply",
        replacement=Edit(
            "await self._store(sink_id, known, applying=True)",
            "known.stored = known.sequence",
        ),
        caught_by=_BY_FAULTS,
    ),
    Mutant(
        id="SK22",
        rule="X4: a replay is told `replay` -> `done`",
        module=_RULES,
        name="SinkRecord.judge",
        replacement=Edit(
            "return Verdict.DONE if same_shares else Verdict.REPLAY", "return Verdict.DONE"
        ),
        caught_by=f"{_BY_STORIES} -k replay_has",
    ),
    Mutant(
        id="SK23",
        rule="X2: a lower batch is refused -> it is committed",
        module=_RULES,
        name="SinkRecord.judge",
        replacement=Edit("if batch.batch_id < self.batch_id:", "if False:"),
        caught_by=f"{_BY_STORIES} -k wakes",
    ),
    Mutant(
        id="SK24",
        rule="X2: a batch waits for the one before -> it does not",
        module=_RULES,
        name="SinkRecord.judge",
        replacement=Edit("if self.unapplied:", "if False:"),
        caught_by=f"{_BY_STORIES} -k waits",
    ),
    Mutant(
        id="SK25",
        rule="X4: a wiped checkpoint is refused -> it is not",
        module=_RULES,
        name="SinkRecord.check_source",
        replacement=Edit("source.query_id != self.source.query_id", "False"),
        caught_by=f"{_BY_STORIES} -k wiped",
    ),
    Mutant(
        id="SK26",
        rule="X4: a copied checkpoint is refused -> it is not",
        module=_RULES,
        name="SinkRecord.check_source",
        replacement=Edit("source.checkpoint != self.source.checkpoint", "False"),
        caught_by=f"{_BY_STORIES} -k copied",
    ),
    Mutant(
        id="SK27",
        rule="X5: a batch with an abandoned attempt is refused -> it is not",
        module=_RULES,
        name="SinkRecord._check_attempts",
        replacement=Edit("if gone:", "if False:"),
        caught_by=f"{_BY_STORIES} -k abandoned",
    ),
    Mutant(
        id="SK28",
        rule="X3: an abort keeps what is committed -> it deletes that",
        module=_RULES,
        name="SinkRecord.abandon",
        replacement=Edit("if self.unapplied:", "if False:"),
        caught_by=f"{_BY_STORIES} -k raised",
    ),
    Mutant(
        id="SK29",
        rule="X1: a sink is forgotten when its batch is applied -> at any time",
        module=_RULES,
        name="SinkRecord.forget",
        replacement=Edit("if self.unapplied:", "if False:"),
        caught_by=f"{_BY_STORIES} -k not_forgotten",
    ),
    Mutant(
        id="SK30",
        rule="X1: a sink is forgotten when its staging is deleted -> before",
        module=_COMMIT,
        name="Sinks.forget",
        replacement=Edit(
            "stored.record.state is SinkState.APPLIED and not await self.clean(stored)", "False"
        ),
        caught_by=f"{_BY_STORIES} -k not_forgotten",
    ),
    Mutant(
        id="SK31",
        rule="a topic that was made anew blocks the batch -> it takes the batch",
        module=_TOPIC,
        name="TopicSinks._why_never",
        replacement=Edit("if self._topic().log.created != pending.created:", "if False:"),
        caught_by=f"{_BY_STORIES} -k made_anew",
    ),
    Mutant(
        id="SK32",
        rule="X1: a new owner counts the entries behind the progress -> it believes the progress",
        module=_TOPIC,
        name="TopicSinks._count",
        replacement=Edit("if not progress.applying:", "if True:"),
        caught_by=f"{_BY_POINTS} -k append_an_entry",
    ),
    Mutant(
        id="SK33",
        rule="X1: the progress is durable before the first entry -> it is stored behind it",
        module=_TOPIC,
        name="TopicSinks._apply",
        replacement=Edit(
            "await self._store(sink_id, known, applying=True)",
            "known.stored = known.sequence",
        ),
        caught_by=f"{_BY_POINTS} -k append_an_entry",
    ),
    Mutant(
        id="SK34",
        rule="X1: a partition is marked when its last entry is durable -> before",
        module=_TOPIC,
        name="TopicSinks._apply",
        replacement=Edit("await known.wait_confirmed()\n    if known.refused", "if known.refused"),
        caught_by=f"{_BY_STORIES} -k slow_disks",
    ),
    Mutant(
        id="SK35",
        rule="X1: the sequence ids count on from batch to batch -> from 0",
        module=_RULES,
        name="SinkRecord.first_sequence",
        replacement=Edit("0 if partition is None else partition.following", "0"),
        caught_by=f"{_BY_POINTS} -k each_name",
    ),
    Mutant(
        id="SK36",
        rule="X2: shares are applied in the order of the tasks -> the other way round",
        module="daybook.managed_ledger.sinks.manifest",
        name="make_manifest",
        replacement=Edit("enumerate(ends)", "enumerate(ends[::-1])"),
        caught_by=f"{_BY_POINTS} -k each_name",
    ),
    Mutant(
        id="SK37",
        rule="X5: staging is deleted after its attempt is in the record -> before",
        module=_COMMIT,
        name="Sinks.abandon",
        replacement=Edit(
            "following = stored.record.abandon([share.attempt for share in shares], named)",
            "following = stored.record.abandon([share.attempt for share in shares], named)\n"
            "        for share in shares:\n"
            "            await self.ledgers.delete(share.ledger_id, name, share.attempt)",
        ),
        caught_by=f"{_BY_POINTS} -k each_name",
    ),
    Mutant(
        id="SK38",
        rule="X3: a commit whose answer was lost keeps its manifest -> deletes it as a failure",
        module=_COMMIT,
        name="_is_same",
        replacement=Edit(
            "if found.sink_id != following.sink_id or found.batch_id != following.batch_id:",
            "if True:",
        ),
        caught_by=f"{_BY_POINTS} -k name_the_batch",
    ),
    Mutant(
        id="SK39",
        rule="X3: the manifest is deleted after all staging ledgers -> before",
        module=_COMMIT,
        name="Sinks.clean",
        replacement=Edit(
            "    left: list[int] = []",
            "    await self.ledgers.delete(record.manifest.ledger_id, stored.name)\n"
            "    left: list[int] = []",
        ),
        caught_by=f"{_BY_POINTS} -k each_name",
    ),
    Mutant(
        id="SK40",
        rule="X1: a batch is APPLIED when all its partitions are -> when one is",
        module=_RULES,
        name="SinkRecord.mark_applied",
        replacement=Edit("not set(self.in_batch) <= set(marked)", "not marked"),
        caught_by=f"{_BY_STORIES} -k one_partition",
    ),
    Mutant(
        id="SK41",
        rule="a role has a quarter of all sinks -> all of them",
        module=_STORED,
        name="StoredSinks.check_number",
        replacement=Edit("own.stat.children_count >= ROLE_SINKS_MAX", "False"),
        caught_by=f"{_BY_LIMITS} -k quarter_of_all_sinks",
    ),
    Mutant(
        id="SK42",
        rule="a name counts for a role when staging begins -> when a batch is committed",
        module="daybook.broker.admin.sink_operations",
        name="SinkOperations.begin",
        replacement=Edit("if role:", "if False:"),
        caught_by=f"{_BY_LIMITS} -k quarter_of_all_sinks",
    ),
    Mutant(
        id="SK43",
        rule="requests at the same time do not exceed the number of a role -> they do",
        module=_STORED,
        name="StoredSinks.reserve",
        replacement=Edit("async with self._reserving:", "if True:"),
        caught_by=f"{_BY_LIMITS} -k at_the_same_time",
    ),
    Mutant(
        id="SK44",
        rule="a record that the cleaner makes counts for the role -> for nobody",
        module=_STORED,
        name="StoredSinks.find_or_create",
        replacement=Edit("if role:", "if False:"),
        caught_by=f"{_BY_LIMITS} -k removed_record",
    ),
    Mutant(
        id="SK45",
        rule="a request of an attempt whose answer is lost is never sent again -> it is",
        module=_HTTP,
        name="HttpConnection.request",
        replacement=Edit(
            'raise ConnectionLostError(f"{where}: {error}") from error',
            "return await self.request(method, target, body, timeout_s=timeout_s)",
        ),
        caught_by=f"{_BY_HTTP} -k not_sent_again",
    ),
    Mutant(
        id="SK46",
        rule="a connection that was idle for long is not used -> it is",
        module=_HTTP,
        name="_IDLE_TRUSTED_S",
        replacement=1e9,
        caught_by=f"{_BY_HTTP} -k not_trusted",
    ),
    Mutant(
        id="SK47",
        rule="a connection that its server has ended is not used -> it is",
        module=_HTTP,
        name="_Opened.may_be_used",
        replacement=lambda _self: True,
        caught_by=f"{_BY_HTTP} -k has_ended",
    ),
    Mutant(
        id="SK48",
        rule="a connection is not kept behind a refusal -> it is",
        module=_HTTP,
        name="_Opened.may_be_kept",
        replacement=Edit("and response.status < _REFUSED", ""),
        caught_by=f"{_BY_HTTP} -k may_end",
    ),
    Mutant(
        id="SK49",
        rule="a request without an answer ends its connection -> the next one uses it",
        module=_HTTP,
        name="HttpConnection.request",
        replacement=Edit("if opened is not self._idle:", "if False:"),
        caught_by=f"{_BY_HTTP} -k closed_after",
    ),
    Mutant(
        id="SK50",
        rule="one body of a task is under way at a time -> several are, in any order",
        module=_STAGE,
        name="Staging._send",
        replacement=Edit("await self._arrived()", "pass"),
        caught_by=f"{_BY_ONCE} -k under_way",
    ),
    Mutant(
        id="SK51",
        rule="an attempt is closed when its last body has arrived -> before",
        module=_STAGE,
        name="Staging._stage",
        replacement=Edit("await self._arrived()", "pass"),
        caught_by=f"{_BY_ONCE} -k last_body",
    ),
    Mutant(
        id="SK52",
        rule="a body that is lost ends the attempt -> the task goes on",
        module=_STAGE,
        name="_UnderWay.arrived",
        replacement=Edit("if self._error is not None:", "if False:"),
        caught_by=f"{_BY_ONCE} -k is_lost",
    ),
    Mutant(
        id="SK53",
        rule="a broker takes no staged entry that consumers could not read -> any that parses",
        module=_STAGING,
        name="check_staged",
        replacement=Edit("check_metadata(metadata)", "pass"),
        caught_by=f"{_BY_FORMATS} -k readers",
    ),
]
