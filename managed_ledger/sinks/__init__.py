"""Sinks: batches of entries that are in topics exactly once, by *stage, commit, apply*.

A batch is all or nothing in the end.  Before the commit no entry of it is in a topic.  After the
commit every entry will be there once, and in each topic partition what is there is a prefix of the
batch's share in order.  A batch is no snapshot: readers see its first entries before its last.

    stage    each task writes its entries to a *staging ledger* of its own and closes it
    commit   the driver names the staging ledgers in the order of the tasks; one write of the
             sink's record makes the batch committed
    apply    the owner of each topic partition appends its share, from the first sequence id that
             its own progress lacks; then the batch is APPLIED and the staging ledgers are deleted

Read in this order:

    record      the record `/daybook/sinks/NAME` and the pending nodes of topic partitions: formats
    staging     staged entries, runs, and the last entry of a staging ledger, which describes it
    manifest    the order of the shares of a committed batch, in a ledger of its own
    ledgers     the ledgers of sinks: they name their sink in their metadata
    batch       a batch as its driver names it
    stored      the records of sinks in the metadata store, and how many there may be
    pending     the pending nodes there
    commit      commit, abandon, finish and the operator's decisions; `at_once` is for many calls
    cleaning    deletes staging that was not committed
    progress    how far the owner of a topic has applied a sink

`managed_ledger.protocol.sink` has the rules, pure.  `docs/formats/sinks.md` has the formats.

Through a broker
================

A program that reaches only brokers uses these paths below `/admin/v2/daybook/sinks`.  Bodies and
answers are JSON, names in camel case; an error is `{"reason": ...}` with its status.

A batch is `{"queryId": str, "batchId": int >= 0, "topics": {topic: partitions}}`: the number of
partitions of each topic as the driver read it once for the batch, 0 for a topic without partitions.
`POST` with the same body to another broker is always safe.

    GET    ""                              the sinks, a list of states
    GET    /NAME                           the state of a sink, 404 if there is none

    POST   /NAME/attempts                  begin an attempt.  Body: a batch.
                                           Answer: {"attempt": str, "ledgerId": int, "url": str}
    PUT    /NAME/attempts/ATTEMPT          append entries.  Query: topic (the full name of the topic
                                           partition), first (the number of entries that the attempt
                                           has appended before).  Body: `staging.encode_body`, at
                                           most 4 MiB, or one entry.  Answer: {"next": int}, when
                                           the entries are durable
    POST   /NAME/attempts/ATTEMPT/close    end an attempt.  Body: {"rows": int, "hash": int}.
                                           Answer: a share {"attempt": str, "ledgerId": int,
                                           "rows": int, "hash": int, "entries": int, "bytes": int}
    DELETE /NAME/attempts/ATTEMPT          give an attempt up

The calls about one attempt go to the `url` of its answer, because that broker holds its writer.
If one of them fails, or `first` does not match, the attempt has failed: begin another one.  An
attempt that nothing is appended to for 10 minutes has failed, too.  Entries of one body belong to
one topic partition; a task may come back to a partition, and the order of bodies is the order of
the entries.  A task without rows needs no attempt: its share is null.  `hash` is the sum of a
64-bit hash of each row modulo 2**64, so that it does not depend on the order of rows.

    POST   /NAME/commit                    Body: a batch, and "checkpoint": str, "once": bool (the
                                           name is used for this one batch), "shares": a list of
                                           shares in the order of tasks, null allowed (attempt and
                                           ledgerId are enough).
                                           Answer: {"outcome": str, "warning": str, "sink": state}
    POST   /NAME/abort                     Body: a batch, "checkpoint", "shares".
                                           Answer: {"abandoned": [attempts], "kept": [attempts]}
    POST   /NAME/roll-forward?waitS=N      apply what is committed; wait up to N (at most 20) s.
                                           Answer: the state

The `outcome` of a commit is one of

    committed   the record names this batch now
    done        it did so before: the batch is known by its shares
    replay      the record has a batch of that id with other shares and as many rows.  The shares of
                this call were abandoned.  `warning` is not empty if the rows have another hash
    wait        an earlier batch is committed and not applied: roll forward until the state is
                APPLIED, then commit again

After any outcome the driver rolls forward until the state says APPLIED, or gives up after its
`commitTimeout`: the batch stays committed and is applied by the brokers.  A refusal (409) names the
remedy: a lower batch id, another query or checkpoint, an attempt that was abandoned, another number
of partitions, a replay with another number of rows, a topic that takes no messages.  409 is final.
503 and a lost answer are not: repeat the call.

A state is {"name", "sinkId", "queryId", "checkpoint", "state": "NEW|COMMITTED|APPLIED|BLOCKED",
"batchId", "rows", "once": bool, "partitions": [{"topic", "next", "state": "pending|applied|blocked|
skipped", "reason"}], "abandoned": [attempts]}.

    POST   /NAME/forget                    forget the query: the next commit may come from any other
    POST   /NAME/move                      Body: {"checkpoint": str}: the same query, another path
    POST   /NAME/resolve                   Body: {"skipPartition": topic partition} or
                                           {"abandon": true}: an operator's decision on a BLOCKED
                                           batch

In Python
=========

    staging.staged_entry(metadata: MessageMetadata, body: Buffer) -> bytes
        One Pulsar message or batch as an entry to be staged.  `metadata` lacks producer name,
        sequence id and publish time, which the owner of the partition sets when it applies the
        entry; everything else (key, properties, event time, compression, `num_messages_in_batch`,
        schema version) is as a producer would send it.  Raise StagedEntryError.
    staging.encode_body(entries: Iterable[bytes]) -> bytes
        `| size u32 | staged entry |`, repeated.
    staging.BODY_BYTES_MAX, staging.ENTRY_ROOM_BYTES
        The largest body; what a staged entry has to be smaller than the largest message.

`daybook.clients.python.sinks.SinkClient(admin_url)` calls the paths above, blocking, from any
thread or process; it keeps nothing between calls.

    client.begin(name, batch) -> Attempt       attempt.append(topic, entries) / .close(rows, hash)
                                               -> Share / .give_up()
    client.commit(name, batch, shares, checkpoint=, once=) -> Committed(outcome, warning, state)
    client.abort(name, batch, shares, checkpoint=)
    client.roll_forward(name, timeout_s=) -> State     returns when APPLIED; raise NotAppliedError
    client.forget(name), .state(name)

`Batch(query_id, batch_id, topics)` and `Share(attempt, ledger_id, rows, hash, entries, bytes)` are
plain data, and can be pickled.
"""
