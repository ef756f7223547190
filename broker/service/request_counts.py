"""How many commands the clients of a broker have sent, and how many of them were refused, by kind.

What comes once per entry (SEND, ACK) is not counted here: topics count messages.
"""

from collections import Counter

from daybook.wire.messages.registry import type_name
from daybook.wire.proto import pulsar_pb2 as pb


class RequestCounts:
    """Since the broker began.  Keys are numbers of commands and of errors."""

    def __init__(self) -> None:
        self.came: Counter[int] = Counter()  # by command
        self.refused: Counter[tuple[int, int]] = Counter()  # by command and error, SEND and ACK too


def command_name(command: int) -> str:
    return type_name(command)


def error_name(code: int) -> str:
    return pb.ServerError.Name(code) if code in pb.ServerError.values() else str(code)
