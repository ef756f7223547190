"""How the first release of Daybook, and Pulsar, read a record in a cursor's ledger.

Both know PositionInfo without the fields 1000 and 1001, so they take each record for a snapshot.
"""

from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from daybook.managed_ledger import records_pb2
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import add_ranges
from daybook.managed_ledger.position import Position

_PACKAGE, _OLD_PACKAGE = ".daybook.managed_ledger", ".first_release"


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    mark_delete: Position
    acked: AckSet
    properties: dict[str, int]


def _position_info() -> Any:
    file = FileDescriptorProto()
    records_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "first_release.proto", _OLD_PACKAGE.removeprefix(".")
    for message in file.message_type:
        for field in [*message.field, *(f for m in message.nested_type for f in m.field)]:
            if field.type_name:
                field.type_name = field.type_name.replace(_PACKAGE, _OLD_PACKAGE)
        kept = [field for field in message.field if field.number < 1000]
        del message.field[:]
        message.field.extend(kept)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("first_release.PositionInfo"))


_PositionInfo = _position_info()


def read_as_snapshot(record: bytes) -> SnapshotRead:
    info = _PositionInfo()
    info.ParseFromString(record)
    assert info.IsInitialized()
    acked = AckSet()
    add_ranges(acked, info.individualDeletedMessages, {})
    for ledger in info.individualDeletedMessageRanges:
        acked.add_words(ledger.key, ledger.values)
    properties = {p.name: p.value for p in info.properties}
    return SnapshotRead(Position(info.ledgerId, info.entryId), acked, properties)
