"""Rules about entries that are sent, written and answered together, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_BLOCKS = "daybook.wire.messages.blocks"
_DIRECTORY = "daybook.bookie.storage.ledger_directory"
_RUNS = "tests:tests/bookie/storage/test_runs.py"
_ON_THE_WIRE = "tests:tests/wire/test_blocks.py"
_CLIENT = "tests:tests/bookie/ledger/test_blocks.py"
_SINGLE = "tests:tests/bookie/server/test_v2.py"
_SERVER = "tests:tests/bookie/server/test_blocks.py"


def _unguarded(mutant_id: str, rule: str, guard: str) -> Mutant:
    return Mutant(
        id=mutant_id,
        rule=rule,
        module=_DIRECTORY,
        name="LedgerDirectory._takes_run",
        replacement=Edit(guard, "True"),
        caught_by=_RUNS,
    )


MUTANTS = [
    _unguarded("N01", "a fenced ledger takes no run -> it does", "not state.fenced"),
    _unguarded("N02", "a run has the key of its ledger -> any", "state.master_key == master_key"),
    _unguarded("N03", "a bookie that rejects plain adds takes no run -> it does", "self.writable"),
    _unguarded("N04", "a stored entry keeps its bytes -> a run is new", "first > state.last_entry"),
    Mutant(
        id="N05",
        rule="entries with one answer are OK if each is -> if the last one is",
        module="daybook.bookie.storage.store",
        name="LedgerStore.add_run",
        replacement=Edit("result is StoreStatus.OK or status is StoreStatus.FENCED", "True"),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N06",
        rule="a run is answered when it is durable -> when it is accepted",
        module=_DIRECTORY,
        name="LedgerDirectory._accept_run",
        replacement=Edit(
            "append_run(run, done_when_durable)",
            "append_run(run, None)\n    done(StoreStatus.OK)",
        ),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N07",
        rule="the adds of a block are consecutive, of one ledger, with one key -> any",
        module=_BLOCKS,
        name="decode_block",
        replacement=Edit(
            "entry != entry_id or ledger != ledger_id or packet != first_packet", "False"
        ),
        caught_by=_SERVER,
    ),
    Mutant(
        id="N13",
        rule="adds with another request in between are no run -> they are a run",
        module="daybook.bookie.server.v2",
        name="V2Handler.handle",
        replacement=Edit("runs, next_id = [], -1", "runs = []"),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N14",
        rule="a run has the key of its first add -> only its ledger is compared",
        module="daybook.bookie.server.v2",
        name="V2Handler.handle",
        replacement=Edit(" or its_key != key", ""),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N15",
        rule="each add of a run is answered under its own id -> under that of the first one",
        module="daybook.bookie.server.v2",
        name="RunsDone.__call__",
        replacement=Edit("ledger_id, entry_id)", "ledger_id, first)"),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N17",
        rule="only plain adds are joined -> recovery adds, too",
        module="daybook.bookie.server.v2",
        name="V2Handler.handle",
        replacement=Edit("_unpack_header(frame) != _PLAIN_ADD", "frame[0] != 2 or frame[1] != 1"),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N18",
        rule="runs of several ledgers are answered when they are durable -> when accepted",
        module=_DIRECTORY,
        name="LedgerDirectory._accept_runs",
        replacement=Edit(
            "taken(accepted, len(piece)))\n    count",
            "lambda _: None)\n    taken(accepted, len(piece))(StoreStatus.OK)\n    count",
        ),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N19",
        rule="a ledger that occurs twice in one piece has advanced in between -> it has not",
        module=_DIRECTORY,
        name="LedgerDirectory.try_add_runs",
        replacement=Edit("state.last_entry = run.first + len(run.sizes) - 1", "pass"),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N08",
        rule="a block has plain adds only -> recovery adds, too",
        module=_BLOCKS,
        name="decode_block",
        replacement=Edit("U32.unpack_from(first_packet)[0] != ADD_HEADER", "False"),
        caught_by=_ON_THE_WIRE,
    ),
    Mutant(
        id="N09",
        rule="blocks go to bookies that have announced them -> to all bookies",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory.takes_blocks",
        replacement=Edit("bookie in self._with_blocks", "True"),
        caught_by=_CLIENT,
    ),
    Mutant(
        id="N16",
        rule="an answer to an unknown block is ignored -> it is trusted",
        module="daybook.bookie.ledger.codecs",
        name="V2Codec._block_answered",
        replacement=Edit(
            "self._under_way.remove((run.ledger_id, run.first, run.last))",
            "pass",
        ),
        caught_by=f"{_CLIENT} -k proves_nothing",
    ),
    Mutant(
        id="N10",
        rule="each entry of a long run is sent once -> pieces overlap",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._pieces",
        replacement=Edit("frames, before = [], length", "frames, before = frames[-1:], length"),
        caught_by=_CLIENT,
    ),
    Mutant(
        id="N11",
        rule="entries that are only gathered when the writer stops are never sent -> they are",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._stop",
        replacement=Edit(
            "self._handle(self._protocol.stop)",
            "self.flush()\n        self._handle(self._protocol.stop)",
        ),
        caught_by=_CLIENT,
    ),
]
