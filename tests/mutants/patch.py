"""One rule of the shipped code, broken for the length of a `with` block.

    mutant = Mutant(
        id="M02",
        rule="WQ - AQ + 1 negative answers -> one fewer",
        module="daybook.bookie.ledger.protocol.placement",
        name="Quorums.absent",
        replacement=Edit("self.write - self.ack + 1", "max(1, self.write - self.ack)"),
        caught_by="storms",
    )
    with applied(mutant):
        ...

A mutant replaces one function, method, property or constant of a module, by another value or by the
same source with one place edited.  The old text of that place has to occur exactly once: when it
does not, applying the mutant fails, and the author of the change decides what breaks the rule now.

Names that other modules imported with `from` are replaced there as well.  Nothing of this is in the
shipped code, and after the block everything is as it was.
"""

import importlib
import inspect
import sys
import textwrap
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

_HOUSE = ("daybook", "tests")


class SourceChangedError(AssertionError):
    """The code that a mutant replaces is not the code that it was made for."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The source of the original, with `old`, which is there once, replaced by `new`."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    id: str
    rule: str  # what is right -> what this makes of it
    module: str
    name: str  # in the module: a function, a constant, `Class.method`
    replacement: Any  # a value, or an `Edit`
    caught_by: str  # the layer, and for some behind a colon what to run there
    also: tuple["Mutant", ...] = ()  # applied together with this one


@dataclass(frozen=True, slots=True)
class Target:
    """What a mutant replaces."""

    holder: ModuleType | type
    attribute: str
    original: Any

    @property
    def source(self) -> str:
        """Of a function its text, of a constant its value."""
        original = self.original
        if isinstance(original, property | cached_property):
            original = original.fget if isinstance(original, property) else original.func
        elif isinstance(original, staticmethod | classmethod):
            original = original.__func__
        original = inspect.unwrap(original) if callable(original) else original
        if isinstance(original, FunctionType):
            return textwrap.dedent(inspect.getsource(original))
        return repr(original)


def target_of(mutant: Mutant) -> Target:
    holder: ModuleType | type = importlib.import_module(mutant.module)
    *path, attribute = mutant.name.split(".")
    for name in path:
        holder = getattr(holder, name)
    return Target(holder, attribute, inspect.getattr_static(holder, attribute))


@contextmanager
def applied(*mutants: Mutant) -> Generator[None]:
    """The rules of these mutants, and of those that belong to them, are broken inside."""
    with ExitStack() as stack:
        for mutant in mutants:
            for each in (mutant, *mutant.also):
                stack.enter_context(_applied(each))
        yield


@contextmanager
def _applied(mutant: Mutant) -> Generator[None]:
    target = target_of(mutant)
    replacement = mutant.replacement
    if isinstance(replacement, Edit):
        replacement = _edited(mutant, target, replacement)
    places = [target.holder, *_importers(target)]
    for place in places:
        setattr(place, target.attribute, replacement)
    try:
        yield
    finally:
        for place in places:
            setattr(place, target.attribute, target.original)


def _edited(mutant: Mutant, target: Target, edit: Edit) -> object:
    """Compiled as if it stood where the original stands."""
    source = target.source
    if source.count(edit.old) != 1:
        raise SourceChangedError(f"{mutant.id}: {edit.old!r} is there {source.count(edit.old)} x")
    source = source.replace(edit.old, edit.new)
    names: dict[str, Any] = {}
    module = vars(importlib.import_module(mutant.module))
    if "super()" not in source:
        exec(compile(source, f"<{mutant.id}>", "exec"), module, names)
        return names[target.attribute]
    body = textwrap.indent(source, "    ")
    factory = f"def make(__class__):\n{body}\n    return {target.attribute}\n"
    exec(compile(factory, f"<{mutant.id}>", "exec"), module, names)
    return names["make"](target.holder)


def _importers(target: Target) -> list[ModuleType]:
    """The modules that have a replaced function under the same name."""
    if not isinstance(target.holder, ModuleType):
        return []
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] in _HOUSE
        and module is not target.holder
        and vars(module).get(target.attribute) is target.original
        and isinstance(target.original, FunctionType | type)
    ]
