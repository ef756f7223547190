"""Calls of state machines as data, for tables of scenarios and for messages in flight."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the method `name` of any machine."""

    name: str
    args: tuple[Any, ...]

    def apply(self, machine: Any) -> Any:
        """Make the call, and return what the machine returns."""
        return getattr(machine, self.name)(*self.args)


def call(name: str, *args: Any) -> Call:
    return Call(name, args)
