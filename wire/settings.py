"""Settings of a process: a TOML file, overridden by the environment.

With the prefix `DAYBOOK_BROKER_`, `DAYBOOK_BROKER_HTTP_PORT=8080` sets `http_port`, and
`DAYBOOK_BROKER_QUORUMS__ACK=2` sets `ack` inside `quorums`.  A value is read as text if its field
is a text, and as TOML otherwise.  An unknown key is an error, and so is a value of the wrong type:
nothing is ignored.

A frozen struct that forbids unknown fields declares the settings.  An error that it raises in
`__post_init__` becomes a ConfigError.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar, cast, get_args, get_origin

import msgspec
import msgspec.structs

ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104  to listen on all interfaces, not to connect to
SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)
_UNKNOWN = re.compile("Object contains unknown field `(.+)`")
_MISSING = re.compile("Object missing required field `(.+)`")


class ConfigError(ValueError):
    """A setting is invalid; the message names it."""


def load(
    kind: type[SettingsT], prefix: str, path: Path | None, environment: Mapping[str, str]
) -> SettingsT:
    """Return the settings in the file and the environment; raise ConfigError, which names both."""
    settings: dict[str, object] = {}
    if path is not None:
        try:
            settings = tomllib.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"the settings file {path} cannot be read: {error}") from error
    texts = {field.name for field in msgspec.structs.fields(kind) if _is_text(field.type)}
    for name, text in sorted(environment.items()):
        if name.startswith(prefix):
            _put(settings, name.removeprefix(prefix).lower(), text, texts)
    try:
        return parse(kind, settings)
    except ConfigError as error:
        variable = _variable_in(str(error), prefix, environment)
        if variable is not None:
            raise ConfigError(f"{error} (it comes from the variable {variable})") from error
        places = "no settings file was given" if path is None else f"the file is {path}"
        raise ConfigError(f"{error} ({places}; variables {prefix}* override it)") from error


def _variable_in(error: str, prefix: str, environment: Mapping[str, str]) -> str | None:
    """Return the variable whose setting the error names, if there is one."""
    named = re.search("setting `([^`]+)`", error)
    for name in environment:
        setting = name.removeprefix(prefix).lower().replace("__", ".")
        if named is not None and name.startswith(prefix) and named[1] == setting:
            return name
    return None


def parse(kind: type[SettingsT], settings: Mapping[str, object]) -> SettingsT:
    """Convert `settings` to a `kind`; raise ConfigError if they do not fit."""
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_in_words(str(error))) from None


def _in_words(error: str) -> str:
    """Return an error of msgspec as a sentence that names the setting.

    An error that a struct raises itself is a sentence already.
    """
    what, _, place = error.partition(" - at `$")
    setting = place.strip("`.")
    unknown = _UNKNOWN.fullmatch(what)
    if unknown is not None:
        name = ".".join(filter(None, (setting, unknown[1])))
        return f"there is no setting `{name}`: correct its name, or leave it out"
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        name = ".".join(filter(None, (setting, missing[1])))
        return f"the setting `{name}` is missing, and has no default"
    return f"the value of the setting `{setting}` is not valid: {what}" if setting else what


def _is_text(kind: object) -> bool:
    return kind is str or (get_origin(kind) is Annotated and get_args(kind)[0] is str)


def _put(settings: dict[str, object], name: str, text: str, texts: set[str]) -> None:
    key, _, inner_key = name.partition("__")
    if not inner_key:
        settings[key] = text if key in texts else _value(text)
        return
    inner = settings.get(key)
    inner_settings = cast("dict[str, object]", inner) if isinstance(inner, dict) else {}
    settings[key] = {**inner_settings, inner_key: _value(text)}


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
