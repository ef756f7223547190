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
same source with one place edited.  The old text of that place must occur exactly once: otherwise
applying the mutant fails, and the author of the change decides how the rule can be broken now.

Names that other modules imported with `from` are replaced there as well.  The shipped code has none
of this, and after the block all names are as they were.
"""

import ast
import importlib
import inspect
import io
import sys
import textwrap
import tokenize
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
    """The source of the original, with `old`, which occurs once, replaced by `new`."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    id: str
    rule: str  # the right behavior -> the mutant's behavior
    module: str
    name: str  # in the module: a function, a constant, `Class.method`
    replacement: Any  # a value, or an `Edit`
    caught_by: str  # the layer, and for some behind a colon the tests or storms to run
    also: tuple["Mutant", ...] = ()  # applied together with this one


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a mutant replaces."""

    holder: ModuleType | type
    attribute: str
    original: Any

    @property
    def source(self) -> str:
        """Return the code of a function without docstring and comments, or the constant's value."""
        original = self.original
        if isinstance(original, property | cached_property):
            original = original.fget if isinstance(original, property) else original.func
        elif isinstance(original, staticmethod | classmethod):
            original = original.__func__
        original = inspect.unwrap(original) if callable(original) else original
        if isinstance(original, FunctionType):
            return _only_code(textwrap.dedent(inspect.getsource(original)))
        return repr(original)


def _only_code(source: str) -> str:
    """Return the source without its docstring and comments, so that rewording breaks no mutant."""
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    first = function.body[0]
    if ast.get_docstring(function) is not None and len(function.body) > 1:
        del lines[first.lineno - 1 : first.end_lineno]
    return "".join(line for line in lines if line.strip())


def target_of(mutant: Mutant) -> Target:
    holder: ModuleType | type = importlib.import_module(mutant.module)
    *path, attribute = mutant.name.split(".")
    for name in path:
        holder = getattr(holder, name)
    return Target(holder, attribute, inspect.getattr_static(holder, attribute))


@contextmanager
def applied(*mutants: Mutant) -> Generator[None]:
    """Apply these mutants, and those that belong to them, inside the block."""
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
    """Compile the edited source as if it stood where the original stands."""
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
    """Return the modules that have a replaced function under the same name."""
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
