"""Checks of parsed messages that the protobuf runtime leaves out and readers rely on."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from daybook.wire.errors import MalformedError


def check_readable(message: Message) -> None:
    """Raise MalformedError if a required field is missing or a string is not UTF-8.

    The runtime checks neither when it parses, and gives `bytes` for such a string.
    """
    if not message.IsInitialized():
        raise MalformedError(f"{message.DESCRIPTOR.name} lacks a required field")
    _check_strings(message)


def _check_strings(message: Message) -> None:
    for field, value in message.ListFields():
        is_message, is_text = field.type == field.TYPE_MESSAGE, field.type == field.TYPE_STRING
        if not (is_message or is_text):
            continue
        kind = field.message_type
        if kind is not None and field.is_repeated and kind.GetOptions().map_entry:
            _check_map(field.full_name, value)
            continue
        for part in value if field.is_repeated else (value,):
            if is_message:
                _check_strings(part)
            elif not isinstance(part, str):
                raise MalformedError(f"{field.full_name} is not UTF-8")


def _check_map(name: str, entries: Mapping[Any, Any]) -> None:
    """Raise MalformedError unless all keys and values are UTF-8; all maps have text in both.

    The runtime raises an error when such a key is read, and returns such a value as `bytes`.
    """
    try:
        values = list(dict(entries).values())
    except UnicodeDecodeError as error:
        raise MalformedError(f"{name} is not UTF-8") from error
    if any(isinstance(value, bytes) for value in values):
        raise MalformedError(f"{name} is not UTF-8")
