"""An input of a state machine as data: the name of a method, and its arguments.

Tests hold inputs as data where these wait or are compared: messages in flight, tables of scenarios.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: tuple[Any, ...]

    def apply(self, machine: Any) -> Any:
        """Call the method of the machine, and return its result."""
        return getattr(machine, self.name)(*self.args)


def call(name: str, *args: Any) -> Call:
    return Call(name, args)
