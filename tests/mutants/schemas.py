"""Rules of schemas, broken one at a time (`docs/topics.md`, schemas; `docs/formats/schemas.md`)."""

from tests.mutants.patch import Edit, Mutant

_AVRO = "daybook.broker.protocol.schemas.avro"
_STRATEGIES = "daybook.broker.protocol.schemas.compatibility"
_SCHEMA = "daybook.broker.protocol.schemas.schema"
_REGISTRY = "daybook.broker.schemas.registry"
_ADMISSION = "daybook.broker.schemas.admission"
_ORPHANS = "daybook.broker.schemas.orphans"
_VERSIONS = "daybook.clients.python.schemas.versions"
_BY_AVRO = "tests:tests/broker/schemas/test_avro.py"
_BY_RULES = "tests:tests/broker/schemas/test_compatibility.py"
_BY_REGISTRY = "tests:tests/broker/schemas/test_registry.py"
_BY_BROKER = "tests:tests/broker/schemas/test_admission.py"
_BY_REST = "tests:tests/broker/control/test_schemas_rest.py"
_BY_CLIENT = "tests:tests/clients/python/test_schemas.py"

RULES = [
    Mutant(
        id="SC01",
        rule="a field that is not written needs a default -> it needs none",
        module=_AVRO,
        name="_Check._why_record",
        replacement=Edit('why = "it has no default, and is not written"', "why = None"),
        caught_by=f"{_BY_AVRO} -k javas_library",
    ),
    Mutant(
        id="SC02",
        rule="every branch of a writer's union is readable -> one of them",
        module=_AVRO,
        name="_Check.why",
        replacement=Edit(
            "_first(self.why(reader, branch) for branch in writer.branches)",
            "self.why(reader, writer.branches[0]) if writer.branches else None",
        ),
        caught_by=f"{_BY_AVRO} -k fastavro",
    ),
    Mutant(
        id="SC03",
        rule="the reader's enum has the symbols of the writer, or a default -> no matter",
        module=_AVRO,
        name="_Check._why_enum",
        replacement=Edit("if not missing or", "if True or"),
        caught_by=f"{_BY_AVRO} -k enum",
    ),
    Mutant(
        id="SC04",
        rule="what relied on a pair that fails is forgotten -> it counts as readable",
        module=_AVRO,
        name="_Check._why_record",
        replacement=Edit("self._readable.difference_update(self._order[before:])", "pass"),
        caught_by=f"{_BY_AVRO} -k assumption",
    ),
    Mutant(
        id="SC05",
        rule="a schema is nested a bounded number of levels -> without a bound",
        module=_AVRO,
        name="DEPTH_MAX",
        replacement=100_000,
        caught_by=f"{_BY_BROKER} -k not_valid",
    ),
    Mutant(
        id="SC06",
        rule="a comparison ends after a number of steps -> it takes as long as it takes",
        module=_AVRO,
        name="STEPS_MAX",
        replacement=1 << 40,
        caught_by=f"{_BY_AVRO} -k takes_too_long",
    ),
    Mutant(
        id="SC07",
        rule="a default that is used has to be of its type -> any value",
        module=_AVRO,
        name="_is_plain",
        replacement=Edit("match name:", "return True\n    match name:"),
        caught_by=f"{_BY_AVRO} -k default_that_is_not",
    ),
    Mutant(
        id="SC10",
        rule="the type of a schema never changes -> it may",
        module=_STRATEGIES,
        name="_why",
        replacement=Edit("if new.schema.type != old.schema.type:", "if False:"),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="SC11",
        rule="BACKWARD: the new schema reads the old one -> the other way round",
        module=_STRATEGIES,
        name="_why_avro",
        replacement=Edit(
            "why_unreadable(new.avro, old.avro, enums_grow=grow)",
            "why_unreadable(old.avro, new.avro, enums_grow=grow)",
        ),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="SC12",
        rule="a transitive strategy compares with all versions -> with the last one",
        module=_STRATEGIES,
        name="needed",
        replacement=Edit("versions if strategy in TRANSITIVE else versions[-1:]", "versions[-1:]"),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="SC13",
        rule="a consumer has to read what is there -> it is checked by the producers' strategy",
        module=_STRATEGIES,
        name="for_consumer",
        replacement=Edit("return Strategy.BACKWARD", "return strategy"),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="SC14",
        rule="both parts of a pair are compared -> the key alone",
        module=_STRATEGIES,
        name="_why_parts",
        replacement=Edit('("key", "value")', '("key",)'),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="SC15",
        rule="a version is eight bytes, big-endian -> little-endian",
        module=_SCHEMA,
        name="version_bytes",
        replacement=Edit('"big"', '"little"'),
        caught_by=_BY_BROKER,
    ),
]

STORED = [
    Mutant(
        id="SC20",
        rule="a version is named by compare-and-swap -> over whatever is there",
        module=_REGISTRY,
        name="SchemaRegistry._store_version",
        replacement=Edit(
            "Set(locator_path(topic), value, record.stat.version)",
            "Set(locator_path(topic), value, ANY)",
        ),
        caught_by=_BY_REGISTRY,
    ),
    Mutant(
        id="SC21",
        rule="the loser of a race is decided again -> it is stored without a check",
        module=_REGISTRY,
        name="SchemaRegistry._add",
        replacement=Edit(
            "await self._check(topic, locator, examined, rules.strategy)",
            "(await self._check(topic, locator, examined, rules.strategy)) if not _ else None",
        ),
        caught_by=_BY_REGISTRY,
    ),
    Mutant(
        id="SC22",
        rule="the loser of a race deletes its ledger -> it leaves it",
        module=_REGISTRY,
        name="SchemaRegistry._store_version",
        replacement=Edit("await self._ledgers.delete(topic, ledger_id)", "pass"),
        caught_by=_BY_REGISTRY,
    ),
    Mutant(
        id="SC23",
        rule="an addition requires the ledger of the last version -> any record of the version",
        module=_REGISTRY,
        name="SchemaRegistry._store_version",
        replacement=Edit(
            "write.append(Check(self._ledgers.path(locator.last.ledger_id), ANY))", "pass"
        ),
        caught_by=f"{_BY_REGISTRY} -k made_again",
    ),
    Mutant(
        id="SC24",
        rule="an addition requires its own ledger -> it may name one that was removed",
        module=_REGISTRY,
        name="SchemaRegistry._store_version",
        replacement=Edit("[Check(self._ledgers.path(ledger_id), ANY)]", "[]"),
        caught_by=f"{_BY_REGISTRY} -k about_to_be_named",
    ),
    Mutant(
        id="SC25",
        rule="a write without an answer is looked up -> it counts as not done",
        module=_REGISTRY,
        name="SchemaRegistry._write",
        replacement=Edit("if doubt is None:", "if True:"),
        caught_by=f"{_BY_REGISTRY} -k without_an_answer",
    ),
    Mutant(
        id="SC26",
        rule="a version that is not known is looked for in the newest record -> denied",
        module=_REGISTRY,
        name="SchemaRegistry.get",
        replacement=Edit(
            "if found is None:\n        found = _live(await self._newest(topic), version)", "pass"
        ),
        caught_by=f"{_BY_REGISTRY} -k server_is_behind",
    ),
    Mutant(
        id="SC27",
        rule="a topic has a bounded number of versions -> any number",
        module=_REGISTRY,
        name="SchemaRegistry._check_room",
        replacement=Edit("len(locator.all) >= self._versions_max", "False"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="SC28",
        rule="an addition continues when its caller gives up -> it ends halfway",
        module=_REGISTRY,
        name="SchemaRegistry._change",
        replacement=Edit(
            "if self._nursery is None:", "return await act()\n    if self._nursery is None:"
        ),
        caught_by=f"{_BY_REGISTRY} -k gives_up",
    ),
    Mutant(
        id="SC29",
        rule="a ledger of somebody else is not read -> it is read, and recovered",
        module="daybook.broker.schemas.ledgers",
        name="SchemaLedgers.read",
        replacement=Edit("if owner is not None:", "if False:"),
        caught_by=f"{_BY_REGISTRY} -k somebody_else",
    ),
    Mutant(
        id="SC62",
        rule="other tasks run before each comparison -> all versions are compared in one run",
        module=_REGISTRY,
        name="_RUNS_OF_OTHERS",
        replacement=0,
        caught_by=f"{_BY_REGISTRY} -k between_the_comparisons",
    ),
    Mutant(
        id="SC63",
        rule="one schema is compared at a time -> one for each request",
        module=_REGISTRY,
        name="SchemaRegistry._in_turn",
        replacement=Edit("async with self._turn:", "async with trio.Lock():"),
        caught_by=f"{_BY_REGISTRY} -k between_the_comparisons",
    ),
    Mutant(
        id="SC64",
        rule="a large schema is parsed when others have run -> at once",
        module=_REGISTRY,
        name="SchemaRegistry._examine",
        replacement=Edit("if len(schema.data) <= _SMALL_BYTES:", "if True:"),
        caught_by=f"{_BY_REGISTRY} -k before_a_large_schema",
    ),
    Mutant(
        id="SC30",
        rule="the removal of an orphan proves that no record names it -> it had looked before",
        module=_ORPHANS,
        name="SchemaOrphans.remove",
        replacement=Edit(
            "[*proof, Delete(ledger, stored.version)]", "[Delete(ledger, stored.version)]"
        ),
        caught_by=f"{_BY_REGISTRY} -k about_to_be_named",
    ),
    Mutant(
        id="SC31",
        rule="an orphan is of this tree of logs -> of any tree",
        module=_ORPHANS,
        name="SchemaOrphans.remove",
        replacement=Edit("or tree_of(metadata.custom) != tree", ""),
        caught_by=f"{_BY_REGISTRY} -k no_record_names",
    ),
]

CLIENTS = [
    Mutant(
        id="SC40",
        rule="an enforced schema refuses producers without one -> they are admitted",
        module=_ADMISSION,
        name="SchemaAdmission.producer",
        replacement=Edit("if rules.enforced and", "if False and"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="SC41",
        rule="a consumer does not type a topic of bytes -> it does",
        module=_ADMISSION,
        name="_was_used",
        replacement=Edit("return True", "return False"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="SC42",
        rule="a deleted topic takes its schemas along -> they stay",
        module=_REGISTRY,
        name="SchemaRegistry.delete_all",
        replacement=Edit(
            "return await self._change(topic, lambda: self._delete_all(topic))", "return -1"
        ),
        caught_by=f"{_BY_REST} -k takes_its_schemas",
    ),
    Mutant(
        id="SC44",
        rule="the versions of several topics are kept apart -> by their numbers alone",
        module=_VERSIONS,
        name="SchemaVersions.decoder",
        replacement=Edit("if not version or", 'topic = ""\n    if not version or'),
        caught_by=f"{_BY_CLIENT} -k keeps_the_versions",
    ),
    Mutant(
        id="SC45",
        rule="a message that left the queue is returned -> a cancellation loses it",
        module=_VERSIONS,
        name="SchemaVersions.load",
        replacement=Edit(", shield=True", ""),
        caught_by=f"{_BY_CLIENT} -k costs_no_message",
    ),
    Mutant(
        id="SC61",
        rule="a definition that cannot be used costs no message -> its error loses the message",
        module=_VERSIONS,
        name="SchemaVersions._read",
        replacement=Edit("except Exception", "except ValueError"),
        caught_by=f"{_BY_CLIENT} -k cannot_be_used",
    ),
]

MUTANTS = [*RULES, *STORED, *CLIENTS]
