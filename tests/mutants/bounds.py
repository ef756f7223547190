"""What a bookie takes from its peers at most, broken one bound at a time."""

from tests.mutants.patch import Edit, Mutant

_STORAGE = "tests:tests/bookie/storage"
_CONTACTS = "daybook.bookie.storage.contacts"
_VOLUME = "daybook.bookie.storage.volume"
_STATES = "daybook.bookie.storage.states"
_SMALL = f"{_STORAGE}/test_store.py -k kept_in_memory"
_LACS = f"{_STORAGE}/test_room.py -k explicit_lacs"
_QUESTIONS = f"{_STORAGE}/test_tombstones.py -k metadata"
_LATE = f"{_STORAGE}/test_store.py -k late_ids"
_KEY_IS_SMALL = Edit("0 < len(master_key) <= MASTER_KEY_BYTES_MAX", "0 < len(master_key)")

_VIEWS = "daybook.bookie.server.response_buffers"
_ARENAS = "daybook.wire.arena"
_CONNECTION = "daybook.wire.connection"
_RECEIVE = "tests:tests/wire/test_receive_memory.py"
MUTANTS = [
    Mutant(
        id="B18",
        rule="the key that an add brings is small -> of any size",
        module=_VOLUME,
        name="Volume._refusal",
        replacement=_KEY_IS_SMALL,
        caught_by=_SMALL,
    ),
    Mutant(
        id="B18b",
        rule="the key that a fence or a LAC brings is small -> of any size",
        module=_STATES,
        name="States._authorized",
        replacement=_KEY_IS_SMALL,
        caught_by=_SMALL,
    ),
    Mutant(
        id="B19",
        rule="an explicit LAC is small -> of any size",
        module=_STATES,
        name="States.write_lac",
        replacement=Edit("len(body) > EXPLICIT_LAC_BYTES_MAX", "False"),
        caught_by=_SMALL,
    ),
    Mutant(
        id="B19b",
        rule="explicit LACs leave alone what is kept to make room -> they fill it",
        module=_STATES,
        name="States.write_lac",
        replacement=Edit(
            "self._volume.out_of_reserve or self._log.end >= self._volume.recovery_end", "False"
        ),
        caught_by=_LACS,
    ),
    Mutant(
        id="B19c",
        rule="explicit LACs that are not durable yet are bounded -> they are not",
        module=_STATES,
        name="States.write_lac",
        replacement=Edit("self._volume.bytes_in_flight >= self._in_flight_bytes_max", "False"),
        caught_by=_LACS,
    ),
    Mutant(
        id="B20",
        rule="questions to the metadata are bounded in number -> in bytes of their entries alone",
        module=_CONTACTS,
        name="FirstContacts.is_full",
        replacement=Edit("many or ", ""),
        caught_by=_QUESTIONS,
    ),
    Mutant(
        id="B20b",
        rule="entries that wait for the metadata are bounded in bytes -> their ledgers in number",
        module=_CONTACTS,
        name="FirstContacts.is_full",
        replacement=Edit(" or self.bytes_waiting >= self._bytes_max", ""),
        caught_by=_QUESTIONS,
    ),
    Mutant(
        id="B20c",
        rule="who waits for a question that was asked already costs none -> is refused",
        module=_CONTACTS,
        name="FirstContacts.is_full",
        replacement=Edit(" and ledger_id not in self._waiting", ""),
        caught_by=_QUESTIONS,
    ),
    Mutant(
        id="B21",
        rule="each look-up of a late id counts as what its task takes -> as its entry",
        module=_VOLUME,
        name="_LOOKUP_BYTES",
        replacement=0,
        caught_by=_LATE,
    ),
    Mutant(
        id="B21b",
        rule="what is looked up is in flight -> what is on its way to the disk",
        module=_VOLUME,
        name="Volume.bytes_in_flight",
        replacement=Edit(" + self.looked_up_bytes", ""),
        caught_by=_LATE,
    ),
    Mutant(
        id="B21c",
        rule="what waits to be healed is in flight -> it is not",
        module="daybook.bookie.storage.heal",
        name="Healer.heal",
        replacement=Edit("self._volume.looked_up_bytes += len(entry)", "pass"),
        caught_by=f"{_STORAGE}/test_heal.py -k flood",
        also=(
            Mutant(
                id="B21c+",
                rule="and is not counted off",
                module="daybook.bookie.storage.heal",
                name="Healer._tell",
                replacement=Edit("self._volume.looked_up_bytes -= len(wound.entry)", "pass"),
                caught_by="",
            ),
        ),
    ),
    Mutant(
        id="B22",
        rule="entries that nobody takes keep few windows -> each all that was read with it",
        module="daybook.bookie.server.v2",
        name="V2Handler._send_entry",
        replacement=Edit("buffers.view_or_copy(entry, window_ids)", "entry"),
        caught_by="tests:tests/bookie/server/test_hostile.py -k 9216",
    ),
    Mutant(
        id="B22b",
        rule="small entries of a batch that nobody takes keep themselves -> all around them",
        module="daybook.bookie.server.v2",
        name="V2Handler._collect",
        replacement=Edit("self._session.buffers.view_or_copy(entry, window_ids)", "entry"),
        caught_by="tests:tests/bookie/server/test_hostile.py -k 9216",
    ),
    Mutant(
        id="B22c",
        rule="the answers of a connection keep few windows -> as many as there are",
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
        rule="a window counts until the last view of it is sent -> until it is queued",
        module=_VIEWS,
        name="ResponseBuffers.release_sent",
        replacement=Edit("queued and queued[0][0] <= sent", "queued"),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B22g",
        rule="a window that is counted keeps its id -> another one may have it",
        module=_VIEWS,
        name="ResponseBuffers.view_or_copy",
        replacement=Edit("_Window(entry.obj, size)", "_Window(None, size)"),
        caught_by="tests:tests/bookie/server/test_response_buffers.py",
    ),
    Mutant(
        id="B22f",
        rule="a connection that was sent all keeps nothing -> until it asks again",
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
        rule="an arena is counted when it is there -> before",
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
        rule="a frame that does not get on is cut while memory is short -> it stays",
        module=_ARENAS,
        name="ArenaPool._look",
        replacement=Edit("slowest.looks >= _LOOKS_MAX", "False"),
        caught_by=f"{_RECEIVE} -k stalled",
    ),
    Mutant(
        id="B23e",
        rule="half a frame needs a pace -> a byte now and then will do",
        module=_CONNECTION,
        name="FrameConnection._check_pace",
        replacement=Edit("self._window_bytes < pace.bytes_per_s * self._waited_s", "False"),
        caught_by=f"{_RECEIVE} -k by_progress",
    ),
    Mutant(
        id="B23f",
        rule="those who wait for an arena may exceed the bound by one -> they wait for each other",
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
]
