"""The progress of sinks in a topic: properties of the topic's list of ledgers.

    daybook.sink.<sink id>    {"sink":NAME,"sequence":N,"ledger":L,"entry":E,"offset":O,
                               "applying":BOOL}

`sequence` is the highest sequence id of the sink that is durable in the topic, and (`ledger`,
`entry`) the position up to which that was known; `offset` is the offset of the last message there.
While `applying`, further entries of the sink may lie behind that position, and nowhere else: the
owner counts them when it takes the log over.  So none of these ledgers may be trimmed.  When a
batch is applied, `applying` is False, `sequence` is exact, and nothing is held.

The first entry of a sink is appended only after its property is durable.  A log without the
property has no entry of the sink.
"""

from collections.abc import Iterable, Mapping

import msgspec

from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.records_pb2 import KeyValue

PREFIX = "daybook.sink."


class Progress(msgspec.Struct, frozen=True):
    sink: str
    sequence: int
    ledger: int
    entry: int
    offset: int
    applying: bool

    @property
    def position(self) -> Position:
        return Position(self.ledger, self.entry)


def property_of(sink_id: str) -> str:
    """Return the name of the property, which is the name of the sink's producer, too."""
    return PREFIX + sink_id


def encode_progress(progress: Progress) -> str:
    return msgspec.json.encode(progress).decode()


def decode_progress(text: str, what: str) -> Progress:
    """Return a progress.  Raise LogCorruptError."""
    try:
        return msgspec.json.decode(text, type=Progress)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise LogCorruptError(f"the progress of a sink in {what} does not parse: {error}") from None


def progress_of(properties: Mapping[str, str]) -> dict[str, Progress]:
    """Return the progress of all sinks in the properties of a list, by sink id.

    Raise LogCorruptError.
    """
    return {
        name.removeprefix(PREFIX): decode_progress(text, name)
        for name, text in properties.items()
        if name.startswith(PREFIX)
    }


def held_by_sinks(properties: Iterable[KeyValue]) -> list[Position]:
    """Return the positions behind which sinks need the log, as those of cursors.

    The ledger of the position itself stays, too: it shows that nothing behind it was trimmed.  A
    progress that does not parse holds everything.
    """
    held: list[Position] = []
    for each in properties:
        if each.key.startswith(PREFIX):
            try:
                progress = decode_progress(each.value, each.key)
            except LogCorruptError:
                held.append(EARLIEST)
                continue
            if progress.applying:
                held.append(Position(progress.ledger, -1))
    return held
