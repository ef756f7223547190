"""Messages with fields of a fuzzer's choice: mostly consistent ones, some odd ones."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.choices import Choices
from tests.strategies import range_of

TEXTS = (
    "t",
    "u",
    "sub",
    "p",
    "",
    "persistent://public/default/t",
    "persistent://public/default/t-partition-0",
    "non-persistent://public/default/t",
    "public/default",
    "no/such",
    "a b/%2F\u20ac",
    "x" * 1100,
)
_DEPTH_MAX = 3


def fill(message: Message, choices: Choices, *, texts: Sequence[str] = TEXTS) -> None:
    """Fill all required fields, and some others."""
    _fill(message, choices, texts, _DEPTH_MAX)


def _fill(message: Any, choices: Choices, texts: Sequence[str], depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and not choices.one_in(4):
            continue
        inner = field.message_type
        if inner is not None:
            if depth and not inner.GetOptions().map_entry:
                target = getattr(message, field.name)
                part = target.add() if field.is_repeated else target
                part.SetInParent()
                _fill(part, choices, texts, depth - 1)
        elif field.is_repeated:
            getattr(message, field.name).append(_value(field, choices, texts))
        else:
            setattr(message, field.name, _value(field, choices, texts))


def _value(field: Any, choices: Choices, texts: Sequence[str]) -> Any:
    limits = range_of(field)
    if limits is not None:
        low, high = limits
        return low + (choices.number(4) - low) % (high - low + 1)
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            return choices.flag()
        case FieldDescriptor.TYPE_ENUM:
            return choices.pick(field.enum_type.values).number
        case FieldDescriptor.TYPE_STRING:
            return choices.pick(texts)
        case FieldDescriptor.TYPE_BYTES:
            return choices.blob(20)
        case _:
            return 0
