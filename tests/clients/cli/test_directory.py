"""The data directory of a standalone cluster."""

import json
import shutil
import socket
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from daybook.clients.cli.directory import (
    Choice,
    Locked,
    Ports,
    Saved,
    find_control_socket,
    open_directory,
)
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
    ports = (Ports(1, 2), Ports(3, 4)), (Ports(5, 6),)
    saved = Saved("", 2181, *ports, "secure", "h", ("n",), ("brokers", "bookies"))
    with open_directory(tmp_path) as directory:
        assert directory.load() is None
        directory.save(saved)
        assert directory.load() == saved


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 2}', '{"version": 3}', '{"version": 4}']
)
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


GOLDEN = Path(__file__).parents[2] / "golden"
SAVED = Saved("", 2181, (Ports(3181, 8000), Ports(3182, 8001)), (Ports(6650, 8080),))


def test_what_a_cluster_remembers_is_as_it_was_released(tmp_path: Path) -> None:
    golden = GOLDEN / "standalone_v3" / "standalone.json"
    locked: Locked = ("brokers", "bookies", "zookeeper")
    saved = replace(SAVED, security="secure", host="m1.example", names=("m1",), locked=locked)
    with open_directory(tmp_path) as directory:
        directory.save(saved)
        assert (tmp_path / "standalone.json").read_bytes() == golden.read_bytes()
        assert directory.load() == saved


def test_of_a_cluster_from_before_bookies_could_be_locked_the_brokers_are(tmp_path: Path) -> None:
    saved = replace(SAVED, security="secure", host="m1.example", names=("m1",))
    with open_directory(tmp_path) as directory:
        shutil.copy(GOLDEN / "standalone_v2" / "standalone.json", tmp_path)
        assert directory.load() == replace(saved, locked=("brokers",))
        file = tmp_path / "standalone.json"
        file.write_text(file.read_text().replace('"secure"', '"insecure"'))
        assert directory.load() == replace(saved, security="insecure")


@pytest.mark.parametrize("locked", ['["bookies"]', '["brokers", "others"]', "[]", "null", "[[]]"])
def test_locks_that_are_not_understood_are_refused(tmp_path: Path, locked: str) -> None:
    """A part that is taken for an open one would be opened."""
    with open_directory(tmp_path) as directory:
        shutil.copy(GOLDEN / "standalone_v3" / "standalone.json", tmp_path)
        found = json.loads((tmp_path / "standalone.json").read_text())
        found["locked"] = json.loads(locked)
        (tmp_path / "standalone.json").write_text(json.dumps(found))
        with pytest.raises(UserError, match="cannot be read"):
            directory.load()


def test_a_directory_from_before_there_was_a_choice_is_read(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        shutil.copy(GOLDEN / "standalone_v1" / "standalone.json", tmp_path)
        assert directory.load() == SAVED
        assert SAVED.security == "older"
        assert SAVED.service_url == "pulsar://127.0.0.1:6650"


@pytest.mark.parametrize(
    ("security", "host", "service", "admin"),
    [
        ("none", "127.0.0.1", "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"),
        ("insecure", "m1", "pulsar://m1:6650", "http://m1:8080"),
        ("secure", "::1", "pulsar+ssl://[::1]:6650", "https://[::1]:8080"),
    ],
)
def test_the_urls_say_whether_a_cluster_is_secure(
    security: Choice, host: str, service: str, admin: str
) -> None:
    saved = replace(SAVED, security=security, host=host)
    assert (saved.service_url, saved.admin_url) == (service, admin)


def test_only_the_owner_may_enter_a_new_directory(tmp_path: Path) -> None:
    with open_directory(tmp_path / "new"):
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "old").mkdir(mode=0o755)
    with open_directory(tmp_path / "old"):
        assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o755
