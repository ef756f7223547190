"""Rules of the command line, for people who type quickly."""

from tests.mutants.patch import Edit, Mutant

_CONFIRM = "daybook.clients.cli.confirm"
_NOT_FOUND = "daybook.clients.cli.not_found"
_BY_CONFIRM = "tests:tests/clients/cli/test_confirm.py"
_BY_NOT_FOUND = "tests:tests/clients/cli/test_not_found.py"

_PLACES = "daybook.clients.cli.places"
_BACKLOG = "daybook.clients.cli.topic_backlog"
_BY_BACKLOG = "tests:tests/clients/cli/test_topic_backlog.py"
_BY_LONG = "tests:tests/broker/control/test_answer_budget.py"
_BY_MEMORY = "tests:tests/broker/control/test_answer_memory.py"
_BY_REST = "tests:tests/broker/control/test_subscription_admin.py"

MUTANTS = [
    Mutant(
        id="CL1 asked",
        rule="what destroys something needs --yes without a terminal -> it is done",
        module=_CONFIRM,
        name="confirm",
        replacement=Edit("if yes:", "if yes or not sys.stdin.isatty():"),
        caught_by=_BY_CONFIRM,
    ),
    Mutant(
        id="CL1 answered",
        rule="on a terminal the user decides -> the command does",
        module=_CONFIRM,
        name="confirm",
        replacement=Edit("if yes:", "if yes or sys.stdin.isatty():"),
        caught_by=_BY_CONFIRM,
    ),
    Mutant(
        id="CL2 hint",
        rule="the hint is for what is missing -> for topics",
        module=_NOT_FOUND,
        name="hint",
        replacement=Edit("in _HINTS:", "in _HINTS[-1:]:"),
        caught_by=_BY_NOT_FOUND,
    ),
    Mutant(
        id="CL5 moved",
        rule="a bundle that no broker serves cannot be moved -> it was moved",
        module="daybook.clients.cli.bundles",
        name="_hand_over",
        replacement=Edit('if before == "":', "if False:"),
        caught_by="tests:tests/clients/cli/test_bundles_and_brokers.py",
    ),
    Mutant(
        id="CL7 partitions",
        rule="the offsets of a topic with partitions are refused -> those of its first partition",
        module="daybook.clients.python.client",
        name="Client.offsets",
        replacement=Edit("if topic_name(topic).partition < 0", "if False"),
        caught_by="tests:tests/clients/python/test_offset_ranges.py",
    ),
    Mutant(
        id="CL7 poison",
        rule="a JSON value that no consumer could read is not sent -> it is",
        module="daybook.clients.python.schemas.json_records",
        name="JsonSchema.encode",
        replacement=Edit("self._decoder.decode(data)", "pass"),
        caught_by="tests:tests/clients/python/test_schemas.py",
    ),
    Mutant(
        id="CL8 each",
        rule="only a refusal because of partitions asks each of them -> any refusal of that status",
        module="daybook.clients.cli.by_partition",
        name="ask_each",
        replacement=Edit('or "is partitioned" not in str(error)', ""),
        caught_by="tests:tests/clients/cli/test_topics.py",
    ),
    Mutant(
        id="CL6 unit",
        rule="a size needs a unit -> a bare number is bytes",
        module="daybook.clients.cli.policies",
        name="size",
        replacement=Edit('if text == "0":', "if text.isdecimal():"),
        caught_by="tests:tests/clients/cli/test_policies.py",
    ),
    Mutant(
        id="CL3 future",
        rule="a time in the future is refused -> it is the end of the topic",
        module=_PLACES,
        name="past_time",
        replacement=Edit("if time > now:", "if False:"),
        caught_by=_BY_BACKLOG,
    ),
    Mutant(
        id="CL3 nowhere",
        rule="a message that is not there is refused -> the subscription moves to the end",
        module=_PLACES,
        name="_find",
        replacement=Edit(
            "message = await message_at(admin, topic, place)",
            "message = last",
        ),
        caught_by=_BY_BACKLOG,
    ),
    Mutant(
        id="CL3 batch",
        rule="an id behind the end of its batch is refused -> it is the last of the batch",
        module=_PLACES,
        name="message_at",
        replacement=Edit("if len(entry.messages) == 1:", "if True:"),
        caught_by=_BY_BACKLOG,
    ),
    Mutant(
        id="CL3 dry",
        rule="a dry run of a reset moves nothing -> it does",
        module=_BACKLOG,
        name="_move",
        replacement=Edit("if not found:", "if False:"),
        caught_by=_BY_BACKLOG,
    ),
    Mutant(
        id="CL4 acked",
        rule="peek shows what is not acknowledged -> whole batches",
        module=_BACKLOG,
        name="_pending",
        replacement=Edit("if not each.acknowledged", "if True"),
        caught_by=_BY_BACKLOG,
    ),
    Mutant(
        id="CL4 offset",
        rule="an offset that the topic does not hold is not found -> it is the nearest one",
        module="daybook.broker.admin.owned_topics",
        name="OwnedTopics.message_id_of_offset",
        replacement=Edit("if not first <= offset < following:", "if False:"),
        caught_by=_BY_REST,
    ),
    Mutant(
        id="CL4 memory",
        rule="the memory of answers with messages is bounded -> unbounded",
        module="daybook.broker.admin.answer_memory",
        name="AnswerMemory.hold",
        replacement=Edit(
            "    if self.taken + wanted > self.bytes_max:\n        raise",
            "    if False:\n        raise",
        ),
        caught_by=_BY_MEMORY,
    ),
    Mutant(
        id="CL4 sent",
        rule="the memory of an answer is held until it is sent -> until it is known",
        module="daybook.broker.admin.subscription_operations",
        name="SubscriptionOperations._shown",
        replacement=Edit("held.shrink(len(content.data))", "held.release()"),
        caught_by=_BY_MEMORY,
    ),
    Mutant(
        id="CL4 large",
        rule="an entry is decompressed to at most the largest message -> to any size",
        module="daybook.broker.admin.entries",
        name="content_of",
        replacement=Edit(
            "metadata.uncompressed_size, bytes_max)", "metadata.uncompressed_size, 1 << 30)"
        ),
        caught_by=_BY_MEMORY,
    ),
    Mutant(
        id="CL4 pending",
        rule="a peek says which messages of a batch are not acknowledged -> nothing",
        module="daybook.broker.admin.entries",
        name="content_of",
        replacement=Edit("if pending is not None", "if False"),
        caught_by=_BY_REST,
    ),
    Mutant(
        id="CL5 files",
        rule="the files of a context are looked at when it is added -> when it is used",
        module="daybook.clients.cli.context_checks",
        name="check",
        replacement=Edit("*_check_files(made, given), ", ""),
        caught_by="tests:tests/clients/cli/test_contexts.py -k files_of_a_context",
    ),
    Mutant(
        id="CL5 options",
        rule="an error of a command names its options -> the arguments of the Python client",
        module="daybook.clients.cli.broker_client",
        name="in_options",
        replacement=Edit("_OPTIONS.get(found[0], found[0])", "found[0]"),
        caught_by="tests:tests/clients/cli/test_broker_client.py -k arguments_become",
    ),
    Mutant(
        id="CL5 fields",
        rule="an error about a file of TLS names its field -> another one",
        module="daybook.clients.python.tls",
        name="_fields_in",
        replacement=Edit("path is not None and str(path) in error", "path is not None"),
        caught_by="tests:tests/clients/python/test_tls.py -k without_a_use",
    ),
    Mutant(
        id="CL6 others",
        rule="a file that is none of users stays as it is -> it is replaced",
        module="daybook.clients.cli.bookie_users",
        name="_lines",
        replacement=Edit("parse_users(text)", "pass"),
        caught_by="tests:tests/clients/cli/test_bookie_users.py -k other_files",
    ),
    Mutant(
        id="CL6 changed",
        rule="a user has one line -> one more with each password",
        module="daybook.clients.cli.bookie_users",
        name="_without",
        replacement=Edit('if not line.strip().startswith(f"{user}{_HASH}")', ""),
        caught_by="tests:tests/clients/cli/test_bookie_users.py -k changed_and_removed",
    ),
    Mutant(
        id="CL20 pair",
        rule="a user is never given the password of a context -> it is",
        module="daybook.clients.cli.context_storage",
        name="with_context",
        replacement=Edit('filled["user"] is None and ', ""),
        caught_by="tests:tests/clients/cli/test_contexts_of_locked_clusters.py -k another_one",
    ),
    Mutant(
        id="CL20 unasked",
        rule="a broker that was not asked is unknown -> it has failed",
        module="daybook.clients.cli.doctor_checks",
        name="check_brokers",
        replacement=Edit("not ready.asked", "False"),
        caught_by="tests:tests/clients/cli/test_doctor_checks.py -k not_asked",
    ),
    Mutant(
        id="CL20 away",
        rule="ZooKeeper has failed only where nobody listens -> wherever there is no session",
        module="daybook.clients.cli.doctor_questions",
        name="_no_session",
        replacement=Edit("part.startswith(_NOBODY_LISTENS)", "True"),
        caught_by="tests:tests/clients/cli/test_doctor.py -k only_if_nobody_listens",
    ),
    Mutant(
        id="CL20 whole",
        rule="a list with a wrong line is left alone -> a line is added",
        module="daybook.clients.cli.revoked_tokens",
        name="_append",
        replacement=Edit(
            "known = parse(content) == parse(new) and target.exists()", "known = False"
        ),
        caught_by="tests:tests/clients/cli/test_revoked_tokens.py -k left_alone",
    ),
    Mutant(
        id="CL4 long",
        rule="long answers share one bound -> none",
        module="daybook.broker.admin.answer_budget",
        name="AnswerBudget.fits",
        replacement=Edit("return fair and others + needed <= self._bytes_max", "return fair"),
        caught_by=f"{_BY_LONG} -k beyond_the_bound",
    ),
    Mutant(
        id="CL4 long client",
        rule="one client keeps no other out by long answers -> it may take everything",
        module="daybook.broker.admin.answer_budget",
        name="AnswerBudget.fits",
        replacement=Edit("fair = not of_client or", "fair = True or"),
        caught_by=f"{_BY_LONG} -k keeps_no_other_out",
    ),
    Mutant(
        id="CL4 long made",
        rule="an answer takes more while it is made -> as much as when it is sent",
        module="daybook.broker.admin.answer_budget",
        name="AnswerBudget._wanted",
        replacement=Edit("_MAKING * size", "size"),
        caught_by=f"{_BY_LONG} -k while_it_is_made",
    ),
    Mutant(
        id="CL4 long unknown",
        rule="a list of unknown length is made once first -> by all that ask for it",
        module="daybook.broker.admin.answer_budget",
        name="AnswerBudget._has_room",
        replacement=Edit("if path in self._learning:", "if False:"),
        caught_by=f"{_BY_LONG} -k unknown_length",
    ),
    Mutant(
        id="CL4 long page",
        rule="a page does not tell the length of a list -> it does",
        module="daybook.broker.admin.answer_budget",
        name="AnswerBudget.learn",
        replacement=Edit("max(size, int(before * _FORGET))", "size"),
        caught_by=f"{_BY_LONG} -k while_it_is_made",
    ),
    Mutant(
        id="CL4 long sent",
        rule="the memory of a long answer is held until it is sent -> until it is made",
        module="daybook.broker.admin.handling",
        name="within",
        replacement=Edit("response.on_done = held.release", "held.release()"),
        caught_by=f"{_BY_LONG} -k nobody_reads",
    ),
    Mutant(
        id="CL4 long failed",
        rule="an answer that fails takes no memory -> it keeps it",
        module="daybook.broker.admin.handling",
        name="within",
        replacement=Edit(
            "    except BaseException:\n        held.release()\n", "    except BaseException:\n"
        ),
        caught_by=f"{_BY_LONG} -k that_fails",
    ),
]
