"""Rules of entries that are sent, written and answered together, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_BLOCKS = "daybook.wire.messages.blocks"
_VOLUME = "daybook.bookie.storage.volume"
_RUNS = "tests:tests/bookie/storage/test_runs.py"
_ON_THE_WIRE = "tests:tests/wire/test_blocks.py"
_CLIENT = "tests:tests/bookie/ledger/test_blocks.py"
_SINGLE = "tests:tests/bookie/server/test_v2.py"
_SERVER = "tests:tests/bookie/server/test_blocks.py"


def _unguarded(mutant_id: str, rule: str, guard: str) -> Mutant:
    return Mutant(
        id=mutant_id,
        rule=rule,
        module=_VOLUME,
        name="Volume._takes_run",
        replacement=Edit(guard, "True"),
        caught_by=_RUNS,
    )


MUTANTS = [
    _unguarded("N01", "a fenced ledger takes no run -> it does", "not state.fenced"),
    _unguarded("N02", "a run has the key of its ledger -> any", "state.master_key == master_key"),
    _unguarded("N03", "no run where no plain add is taken -> anywhere", "self.writable"),
    _unguarded("N04", "what is here keeps its bytes -> a run is new", "first > state.last_entry"),
    Mutant(
        id="N05",
        rule="entries that are answered together are OK if each is -> if the last one is",
        module="daybook.bookie.storage.together",
        name="Together.__call__",
        replacement=Edit("self._status is StoreStatus.OK or status is StoreStatus.FENCED", "True"),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N06",
        rule="a run is answered when it is durable -> when it is accepted",
        module=_VOLUME,
        name="Volume._accept_run",
        replacement=Edit(
            "append_run(run, told)", "append_run(run, None)\n    done(StoreStatus.OK)"
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
        rule="adds with something else in between are no run -> they are",
        module="daybook.bookie.server.v2",
        name="V2Handler.handle",
        replacement=Edit("runs, next_id = [], -1", "runs = []"),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N14",
        rule="a run has the key of its first add -> its ledger is enough",
        module="daybook.bookie.server.v2",
        name="V2Handler.handle",
        replacement=Edit(" or its_key != key", ""),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N15",
        rule="each add of a run is answered by its id -> by that of the first one",
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
        replacement=Edit("_header(frame) != _PLAIN_ADD", "frame[0] != 2 or frame[1] != 1"),
        caught_by=_SINGLE,
    ),
    Mutant(
        id="N18",
        rule="runs of several ledgers are answered when they are durable -> when accepted",
        module=_VOLUME,
        name="Volume._accept_runs",
        replacement=Edit(
            "taken(accepted, len(piece)))\n    count",
            "lambda _: None)\n    taken(accepted, len(piece))(StoreStatus.OK)\n    count",
        ),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N19",
        rule="a ledger that comes twice in one piece has gone on in between -> it has not",
        module=_VOLUME,
        name="Volume.try_add_runs",
        replacement=Edit("state.last_entry = run.first + len(run.sizes) - 1", "pass"),
        caught_by=_RUNS,
    ),
    Mutant(
        id="N08",
        rule="a block is of plain adds -> of recovery adds, too",
        module=_BLOCKS,
        name="decode_block",
        replacement=Edit("U32.unpack_from(first_packet)[0] != ADD_HEADER", "False"),
        caught_by=_ON_THE_WIRE,
    ),
    Mutant(
        id="N09",
        rule="blocks go to bookies that have said so -> to all",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory.takes_blocks",
        replacement=Edit("bookie in self._with_blocks", "True"),
        caught_by=_CLIENT,
    ),
    Mutant(
        id="N16",
        rule="an answer to a block that is not under way proves nothing -> it is believed",
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
        rule="what has only gathered when the writer stops is never sent -> it is",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._stop",
        replacement=Edit("self._handle(Stop())", "self.flush()\n        self._handle(Stop())"),
        caught_by=_CLIENT,
    ),
]
