"""The context of the running command: `--context`, DAYBOOK_CONTEXT, or the one in use.

`--context` is read before all other options.  `address` answers for options that were not given;
it notes which address comes from the context, as the credentials of a context are for those alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from daybook.clients.cli.errors import UserError

if TYPE_CHECKING:
    from daybook.clients.cli.contexts import Context

Function = TypeVar("Function", bound=Callable[..., object])
_CHOICE, _USED = "daybook.clients.cli.context", "daybook.clients.cli.context-used"
_TOLD = "daybook.clients.cli.context-told"
_VARIABLE = "DAYBOOK_CONTEXT"
_DIRECTORY = "daybook-data"  # the default of `daybook standalone`


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context; `typed` if it was named on the command line, `named` if by a variable at least."""

    name: str
    context: "Context"
    typed: bool
    named: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    """The option and its variable.  The file is read when somebody asks."""

    name: str | None
    typed: bool


def complete_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from daybook.clients.cli.contexts import names

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


def context_option(function: Function) -> Function:
    """Add `--context`.  Commands without it know no contexts."""

    def note(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        assert parameter.name is not None
        source = context.get_parameter_source(parameter.name)
        context.meta[_CHOICE] = _Choice(value, source is ParameterSource.COMMANDLINE)
        if value is not None and not context.resilient_parsing:
            _find(context.meta[_CHOICE])  # A name that does not exist is an error in any case.

    return click.option(
        "--context",
        "context_name",
        is_eager=True,
        expose_value=False,
        envvar=_VARIABLE,
        show_envvar=True,
        metavar="NAME",
        callback=note,
        shell_complete=complete_names,
        help="A cluster of `daybook context`, by its name.  [default: the one in use]",
    )(function)


def _find(choice: _Choice) -> Chosen | None:
    from daybook.clients.cli.contexts import load

    contexts = load()
    name = contexts.in_use if choice.name is None else choice.name
    if not name and choice.name is None:
        return None
    return Chosen(name, contexts.get(name), choice.typed, choice.name is not None)


def chosen() -> Chosen | None:
    """Return the context of the running command, None without one.  Raise UserError."""
    running = click.get_current_context(silent=True)
    if running is None or _CHOICE not in running.meta:
        return None
    return _find(running.meta[_CHOICE])


def address(field: str, option: str, others: Sequence[str] = ()) -> str | None:
    """Return the address in the chosen context; None without a context.

    `others` are the parameters that name a cluster, too.  Raise UserError if one of them was typed
    without this one, or if the context has no such address: a command never reaches two clusters.
    """
    found = chosen()
    if found is None:
        return None
    running = click.get_current_context()
    for other in others:
        if running.get_parameter_source(other) is ParameterSource.COMMANDLINE and not found.typed:
            spelled = f"--{other.replace('_', '-')}"
            raise UserError(
                f"{spelled} says which cluster is meant, and not the context {found.name}: add"
                f" {option}."
            )
    value: str | None = getattr(found.context, field)
    if value is None:
        raise UserError(
            f"The context {found.name} has no {field.replace('_', ' ')}: say it with {option}, or"
            f" add it with `daybook context add {found.name} --replace`."
        )
    _tell_instead_of_directory(running, found)
    running.meta.setdefault(_USED, {})[value] = found
    return value


def _tell_instead_of_directory(running: click.Context, found: Chosen) -> None:
    """Say once that the context in use goes before the cluster of the directory."""
    if found.named or _TOLD in running.meta or not Path(_DIRECTORY).is_dir():
        return
    running.meta[_TOLD] = True
    click.echo(
        f"using the context {found.name}, and not the cluster of ./{_DIRECTORY} (`daybook context"
        f" use` chooses; DAYBOOK_DIR={_DIRECTORY} goes before it)",
        err=True,
    )


def instead_of_variable(field: str, *, required: bool = True) -> Callable[..., str | None]:
    """Return a callback of an option: `--context` goes before the variable of the option.

    With `required`, the callback raises UserError if that context has no such address.
    """

    def choose(running: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        assert parameter.name is not None
        source = running.get_parameter_source(parameter.name)
        if source is not ParameterSource.ENVIRONMENT or _CHOICE not in running.meta:
            return value
        found = chosen() if running.meta[_CHOICE].typed else None
        if found is None:
            return value
        if not required and getattr(found.context, field) is None:
            return None
        return address(field, parameter.opts[0])

    return choose


def context_of(url: str) -> Chosen | None:
    """Return the context from which the running command has this address."""
    running = click.get_current_context(silent=True)
    if running is None:
        return None
    used: dict[str, Chosen] = running.meta.get(_USED, {})
    return used.get(url)


def context_note(url: str) -> str:
    """Return the sentence that says from which context an address comes; empty for others."""
    found = context_of(url)
    return "" if found is None else f" The context {found.name!r} has this address."
