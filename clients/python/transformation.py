"""The function of a pipe: what it gets, what it may return."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from daybook.clients.python.messages import Message


@dataclass(frozen=True, slots=True)
class Output:
    """A message that a pipe writes.  `bytes` alone get the key and the event time of the input."""

    data: bytes | None
    key: str | bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


class WrongResultError(TypeError):
    """The transformation is wrong as a program: no message is to blame, so none is given up."""


Result: TypeAlias = bytes | Output | None
Transform: TypeAlias = Callable[
    [Message], Result | Iterable[Result] | Awaitable[Result | Iterable[Result]]
]


async def outputs_of(transform: Transform, message: Message) -> list[Output]:
    """Return what `transform` makes of a message."""
    made = transform(message)
    if inspect.isawaitable(made):
        made = await made
    found = made
    if found is None or isinstance(found, bytes | Output):
        found = [found]
    if not isinstance(cast("object", found), Iterable):
        raise _wrong(found)
    key = message.key_bytes if message.key_is_bytes else message.key
    outputs: list[Output] = []
    for each in found:
        match each:
            case None:
                pass
            case bytes():
                outputs.append(Output(each, key, None, message.event_time_ms))
            case Output():
                outputs.append(each)
            case _:
                raise _wrong(each)
    return outputs


def _wrong(found: object) -> WrongResultError:
    return WrongResultError(
        "a transformation returns None, bytes, an Output, or a list of them, not"
        f" {type(found).__name__}"
    )
