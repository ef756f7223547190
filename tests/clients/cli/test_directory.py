"""The data directory of a standalone cluster."""

import socket
import tomllib
from pathlib import Path

import pytest

from daybook.clients.cli.directory import Ports, Saved, find_control_socket, open_directory
from daybook.clients.cli.errors import UserError


def test_a_directory_has_one_user(tmp_path: Path) -> None:
    with (
        open_directory(tmp_path / "d"),
        pytest.raises(UserError, match=r"in use by another daybook standalone \(pid \d+\)"),
        open_directory(tmp_path / "d"),
    ):
        raise AssertionError
    with open_directory(tmp_path / "d"):
        pass


def test_a_directory_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"), open_directory(tmp_path / "file" / "d"):
        raise AssertionError


def test_what_is_saved_is_found_again(tmp_path: Path) -> None:
    saved = Saved("", 2181, (Ports(1, 2), Ports(3, 4)), (Ports(5, 6),))
    with open_directory(tmp_path) as directory:
        assert directory.load() is None
        directory.save(saved)
        assert directory.load() == saved


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2}'])
def test_a_damaged_memory_is_refused_not_guessed(tmp_path: Path, text: str) -> None:
    with open_directory(tmp_path) as directory:
        (tmp_path / "standalone.json").write_text(text)
        with pytest.raises(UserError, match=r"standalone\.json"):
            directory.load()


def test_settings_are_written_as_toml(tmp_path: Path) -> None:
    settings = {
        "directories": ['/a b/"c"/\\d/\u00fc\U0001f600\t'],
        "port": 3181,
        "session_timeout_s": 2.5,
        "exit_with_parent": True,
        "host": "127.0.0.1",
    }
    with open_directory(tmp_path) as directory:
        assert tomllib.loads(directory.write_config("x", settings).read_text()) == settings


@pytest.mark.parametrize("depth", [1, 60])
def test_the_socket_is_found_however_long_the_path_is(tmp_path: Path, depth: int) -> None:
    place = tmp_path / "/".join(["dd"] * depth)
    with open_directory(place) as directory, directory.control_socket() as path:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
        assert find_control_socket(place) == path
        assert path.exists()
    assert not path.exists()
    with pytest.raises(
        UserError, match=r"No standalone cluster was ever started in .* or name its"
    ):
        find_control_socket(tmp_path / "elsewhere")


def test_what_a_cluster_remembers_is_as_it_was_released(tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "standalone_v1" / "standalone.json"
    saved = Saved("", 2181, (Ports(3181, 8000), Ports(3182, 8001)), (Ports(6650, 8080),))
    with open_directory(tmp_path) as directory:
        directory.save(saved)
        assert (tmp_path / "standalone.json").read_bytes() == golden.read_bytes()
        assert directory.load() == saved
