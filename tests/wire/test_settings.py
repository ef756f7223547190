"""The settings that all processes share; each process has tests of its own settings as well."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from daybook.wire.settings import ConfigError, load, parse

DEEP = "[" * 100_000


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ack: int = 2


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    kind: Annotated[str, msgspec.Meta(pattern="^[0-9]*$")] = ""
    count: int = 1
    inner: Inner = Inner()


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('name = "a"\ncount = 2\ninner = { ack = 3 }\n')
    environment = {"T_NAME": "7", "T_KIND": "8", "T_INNER__ACK": "4", "OTHER_COUNT": "9"}
    assert load(Settings, "T_", file, environment) == Settings("7", "8", 2, Inner(4))


@pytest.mark.parametrize(
    "environment",
    [{"T_CONUT": "1"}, {"T_COUNT": "x"}, {"T_COUNT": DEEP}, {"T_INNER": "1"}, {"T_KIND": "x"}],
)
def test_what_makes_no_sense_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(Settings, "T_", None, environment)
    (name,) = environment
    assert f"(it comes from the variable {name})" in str(raised.value)


def test_an_error_of_the_file_names_the_file_and_the_prefix(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('name = "a"\nconut = 1')
    with pytest.raises(ConfigError) as raised:
        load(Settings, "T_", file, {"T_COUNT": "1", "CONUT": "1"})
    assert f"(the file is {file}; variables T_* override it)" in str(raised.value)


@pytest.mark.parametrize("content", ["count = ", f"name = {DEEP}", "conut = 1"])
def test_a_file_that_makes_no_sense_is_an_error(content: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        load(Settings, "T_", file, {})
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"conut": 1}, "there is no setting `conut`: correct its name, or leave it out"),
        ({"inner": {"lefft": 1}}, "there is no setting `inner.lefft`: correct its name"),
        ({"count": "x"}, "the value of the setting `count` is not valid: Expected `int`"),
    ],
)
def test_an_error_names_the_setting(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(Settings, settings)
    assert str(raised.value).startswith(sentence)
