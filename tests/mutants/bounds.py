"""Bounds on what a bookie accepts from its peers, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_STORAGE = "tests:tests/bookie/storage"
_UNKNOWN_LEDGERS = "daybook.bookie.storage.unknown_ledgers"
_DIRECTORY = "daybook.bookie.storage.ledger_directory"
_SMALL = f"{_STORAGE}/test_store.py -k kept_in_memory"
_LACS = f"{_STORAGE}/test_room.py -k explicit_lacs"
_QUESTIONS = f"{_STORAGE}/test_tombstones.py -k metadata"
_LATE = f"{_STORAGE}/test_store.py -k late_ids"
_KEY_IS_SMALL = Edit("0 < len(master_key) <= MASTER_KEY_BYTES_MAX", "0 < len(master_key)")

_VIEWS = "daybook.bookie.server.response_buffers"
_ARENAS = "daybook.wire.arena"
_CONNECTION = "daybook.wire.connection"
_RECEIVE = "tests:tests/wire/test_receive_memory.py"
_BY_SIZES = "tests:tests/bookie/ledger/test_entry_sizes.py"

MUTANTS = [
    Mutant(
        id="B18",
        rule="the key of an add is small -> of any size",
        module=_DIRECTORY,
        name="LedgerDirectory._refusal",
        replacement=_KEY_IS_SMALL,
        caught_by=_SMALL,
    ),
    Mutant(
        id="B18b",
        rule="the key of a fence or a LAC is small -> of any size",
        module=_DIRECTORY,
        name="LedgerDirectory._authorized",
        replacement=_KEY_IS_SMALL,
        caught_by=_SMALL,
    ),
    Mutant(
        id="B19",
        rule="an explicit LAC is small -> of any size",
        module=_DIRECTORY,
        name="LedgerDirectory.write_lac",
        replacement=Edit("len(body) > EXPLICIT_LAC_BYTES_MAX", "False"),
        caught_by=_SMALL,
    ),
    Mutant(
        id="B19b",
        rule="explicit LACs leave the space for compaction free -> they fill it",
        module=_DIRECTORY,
        name="LedgerDirectory.write_lac",
        replacement=Edit("self.out_of_reserve or self.log.end >= self.recovery_end", "False"),
        caught_by=_LACS,
    ),
    Mutant(
        id="B19c",
        rule="explicit LACs that are not durable yet are bounded -> unbounded",
        module=_DIRECTORY,
        name="LedgerDirectory.write_lac",
        replacement=Edit("self.bytes_in_flight >= self._in_flight_bytes_max", "False"),
        caught_by=_LACS,
    ),
    Mutant(
        id="B20",
        rule="questions to the metadata are bounded in number -> in bytes of their entries alone",
        module=_UNKNOWN_LEDGERS,
        name="UnknownLedgerCheck.is_full",
        replacement=Edit("many or ", ""),
        caught_by=_QUESTIONS,
    ),
    Mutant(
        id="B20b",
        rule="entries that wait for metadata are bounded in bytes -> only their ledgers in number",
        module=_UNKNOWN_LEDGERS,
        name="UnknownLedgerCheck.is_full",
        replacement=Edit(" or self.bytes_waiting >= self._bytes_max", ""),
        caught_by=_QUESTIONS,
    ),
    Mutant(
        id="B20c",
        rule="waiting for a question that was already asked is free -> rejected",
        module=_UNKNOWN_LEDGERS,
        name="UnknownLedgerCheck.is_full",
        replacement=Edit(" and ledger_id not in self._waiting", ""),
        caught_by=_QUESTIONS,
    ),
    Mutant(
        id="B21",
        rule="each look-up of a late id counts with the memory of its task -> of its entry",
        module=_DIRECTORY,
        name="_LOOKUP_BYTES",
        replacement=0,
        caught_by=_LATE,
    ),
    Mutant(
        id="B21b",
        rule="entries that are looked up count as in flight -> only those on their way to the disk",
        module=_DIRECTORY,
        name="LedgerDirectory.bytes_in_flight",
        replacement=Edit(" + self.looked_up_bytes", ""),
        caught_by=_LATE,
    ),
    Mutant(
        id="B21c",
        rule="entries that wait for a repair count as in flight -> they do not",
        module="daybook.bookie.storage.entry_repair",
        name="EntryRepairer.repair",
        replacement=Edit("self._directory.looked_up_bytes += len(entry)", "pass"),
        caught_by=f"{_STORAGE}/test_entry_repair.py -k flood",
        also=(
            Mutant(
                id="B21c+",
                rule="they are not counted off either",
                module="daybook.bookie.storage.entry_repair",
                name="EntryRepairer._answer",
                replacement=Edit("self._directory.looked_up_bytes -= len(damaged.entry)", "pass"),
                caught_by="",
            ),
        ),
    ),
    Mutant(
        id="B22",
        rule="unread answers keep few windows -> each keeps all that was read with it",
        module="daybook.bookie.server.v2",
        name="V2Handler._send_entry",
        replacement=Edit("buffers.view_or_copy(entry, window_ids)", "entry"),
        caught_by="tests:tests/bookie/server/test_hostile.py -k 9216",
    ),
    Mutant(
        id="B22b",
        rule="small unread entries of a batch keep only themselves -> their whole window",
        module="daybook.bookie.server.v2",
        name="V2Handler._collect",
        replacement=Edit("self._session.buffers.view_or_copy(entry, window_ids)", "entry"),
        caught_by="tests:tests/bookie/server/test_hostile.py -k 9216",
    ),
    Mutant(
        id="B22c",
        rule="the answers of a connection keep few windows -> any number",
        module=_VIEWS,
        name="ResponseBuffers.view_or_copy",
        replacement=Edit("self._total + size > self._bytes_max", "False"),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B22d",
        rule="the answers of all connections keep few windows -> each connection its share",
        module=_VIEWS,
        name="ResponseBuffers.view_or_copy",
        replacement=Edit("not self._memory.has_room(size)", "False"),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B22e",
        rule="a window counts until its last view is sent -> until it is queued",
        module=_VIEWS,
        name="ResponseBuffers.release_sent",
        replacement=Edit("queued and queued[0][0] <= sent", "queued"),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B22g",
        rule="a counted window keeps its id -> another window may get it",
        module=_VIEWS,
        name="ResponseBuffers.view_or_copy",
        replacement=Edit("_Window(entry.obj, size)", "_Window(None, size)"),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B22f",
        rule="a connection whose answers are all sent keeps no window -> until its next request",
        module=_VIEWS,
        name="WindowMemory.has_room",
        replacement=Edit("        holder.release_sent()\n", ""),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B23",
        rule="the next receive ends the frames -> a variable of an idle loop keeps an arena",
        module=_CONNECTION,
        name="FrameConnection._end_handed",
        replacement=Edit("        release_view(self._handed[-1])\n", ""),
        caught_by=f"{_RECEIVE} -k idle_connection",
    ),
    Mutant(
        id="B23b",
        rule="small frames and the end of file need no arena -> they wait for one",
        module=_CONNECTION,
        name="FrameConnection._make_room",
        replacement=Edit(
            "self._arenas.try_acquire(need + _ROOM_BYTES_MIN) if self._trusted else None",
            "await self._arenas.acquire(need + _ROOM_BYTES_MIN)",
        ),
        caught_by=f"{_RECEIVE} -k need_no_arena",
    ),
    Mutant(
        id="B23c",
        rule="an arena is counted when it is allocated -> before",
        module=_ARENAS,
        name="ArenaPool._allocate",
        replacement=Edit(
            "    try:\n        arena = bytearray(size)\n"
            "    except MemoryError:\n        self._drop",
            "    self._all_bytes += size\n    try:\n        arena = bytearray(size)\n"
            "        self._all_bytes -= size\n    except MemoryError:\n        self._drop",
        ),
        caught_by=f"{_RECEIVE} -k allocation",
    ),
    Mutant(
        id="B23d",
        rule="a frame without progress is cut off while memory is short -> it stays",
        module=_ARENAS,
        name="ArenaPool._look",
        replacement=Edit("slowest.looks >= _LOOKS_MAX", "False"),
        caught_by=f"{_RECEIVE} -k stalled",
    ),
    Mutant(
        id="B23e",
        rule="half a frame needs a minimum rate -> a byte now and then suffices",
        module=_CONNECTION,
        name="FrameConnection._check_pace",
        replacement=Edit("self._window_bytes < pace.bytes_per_s * self._waited_s", "False"),
        caught_by=f"{_RECEIVE} -k by_progress",
    ),
    Mutant(
        id="B23f",
        rule="peers that wait for an arena may exceed the bound by one -> they wait for each other",
        module=_ARENAS,
        name="ArenaPool.acquire",
        replacement=Edit("tries > _TRIES_MAX\n", "False\n"),
        caught_by=f"{_RECEIVE} -k circle",
    ),
    Mutant(
        id="B23g",
        rule="before CONNECT a client may send little -> as much as afterwards",
        module=_CONNECTION,
        name="FrameConnection.__init__",
        replacement=Edit("newcomer_frame_bytes_max or frame_bytes_max", "frame_bytes_max"),
        caught_by=f"{_RECEIVE} -k trusted",
    ),
    Mutant(
        id="B26",
        rule="the log tells a bounded number of refused clients apart -> all of them",
        module="daybook.broker.service.request_counts",
        name="RefusalLog.refused",
        replacement=Edit("kind in self._counts or len(self._counts) < _KINDS_MAX", "True"),
        caught_by="tests:tests/broker/test_refusals.py",
    ),
    Mutant(
        id="B25",
        rule="with many topics, metrics are sums by namespace -> each topic has series",
        module="daybook.broker.metrics",
        name="BrokerMetrics.collect",
        replacement=Edit("if len(stats) > self.topics_max:", "if False:"),
        caught_by="tests:tests/broker/control/test_metrics.py",
    ),
    Mutant(
        id="B24",
        rule="a bookie that announces no frame size takes Apache's default -> as much as ours",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory._list_is",
        replacement=Edit("APACHE_FRAME_BYTES_MAX) for", "1 << 30) for"),
        caught_by=_BY_SIZES,
    ),
    Mutant(
        id="B24 smallest",
        rule="the largest entry is what all bookies take -> what one of them takes",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory._list_is",
        replacement=Edit("self.frame_bytes_max = min(", "self.frame_bytes_max = max("),
        caught_by=_BY_SIZES,
    ),
    Mutant(
        id="B24 told",
        rule="clients are told what bookies take -> what is set",
        module="daybook.broker.service.connection",
        name="ConnectionContext.message_bytes_max",
        replacement=Edit(
            "min(self.config.max_message_size, self.stored_bytes_max() - FRAME_PADDING_BYTES)",
            "self.config.max_message_size",
        ),
        caught_by="tests:tests/broker/test_connection.py",
    ),
]
