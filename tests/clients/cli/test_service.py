"""The settings that `daybook bookie` and `daybook broker` pass to the server."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from daybook.clients.cli.main import main
from tests.clients.cli.test_options import write_cluster


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the server that would have been started."""
    environment: dict[str, str] = {}

    def execve(path: str, command: list[str], environ: Mapping[str, str]) -> None:
        environment.update(environ)
        environment["COMMAND"] = " ".join(command)

    monkeypatch.setattr(os, "execve", execve)
    return environment


def test_the_address_of_an_apache_cluster_says_where_zookeeper_and_ledgers_are(
    started: dict[str, str],
) -> None:
    for part, prefix in (("broker", "DAYBOOK_BROKER_"), ("bookie", "DAYBOOK_BOOKIE_")):
        uri = "zk+hierarchical://one:2182;two/pulsar/ledgers"
        done = CliRunner().invoke(main, [part, "--metadata", uri])
        assert done.exit_code == 0, done.output
        assert started[f"{prefix}ZOOKEEPER"] == "one:2182,two:2181"
        assert started[f"{prefix}LEDGERS_ROOT"] == "/pulsar/ledgers"
        assert f"{prefix}METADATA" not in started


def test_a_bookie_is_told_when_to_acknowledge_and_whether_it_starts_with_new_disks(
    started: dict[str, str],
) -> None:
    words = ["bookie", "--sync", "deferred", "--cookie-repair", "auto"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert started["DAYBOOK_BOOKIE_SYNC"] == "deferred"
    assert started["DAYBOOK_BOOKIE_COOKIE_REPAIR"] == "auto"


@pytest.mark.parametrize("hosts", ["one", "127.0.0.1:39", "[::1]:39", "h:39,[::1]:39/chroot"])
def test_several_hosts_with_and_without_ports_are_a_place(
    started: dict[str, str], hosts: str
) -> None:
    done = CliRunner().invoke(main, ["broker", "--zookeeper", hosts])
    assert done.exit_code == 0, done.output
    assert started["DAYBOOK_BROKER_ZOOKEEPER"] == hosts


def test_a_part_joins_the_cluster_that_the_environment_names(
    started: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBOOK_ZOOKEEPER", "meant:2181")
    assert CliRunner().invoke(main, ["broker"]).exit_code == 0
    assert started["DAYBOOK_BROKER_ZOOKEEPER"] == "meant:2181"
    monkeypatch.setenv("DAYBOOK_BOOKIE_ZOOKEEPER", "its-own:2181")
    assert CliRunner().invoke(main, ["bookie"]).exit_code == 0
    assert started["DAYBOOK_BOOKIE_ZOOKEEPER"] == "its-own:2181"


def test_what_is_not_said_is_left_to_the_settings(started: dict[str, str]) -> None:
    done = CliRunner().invoke(main, ["bookie"])
    assert done.exit_code == 0, done.output
    assert "DAYBOOK_BOOKIE_SYNC" not in started


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metadata", "etcd://h:1/ledgers"], "'etcd', which is none of"),
        (["--metadata", "zk+flat://h:1/ledgers"], "'zk+flat', which is none of"),
        (["--metadata", "zk://h/l", "--zookeeper", "h:1"], "leave them out"),
        (["--metadata", "zk://h/l", "--ledgers-root", "/l"], "leave them out"),
        (["--zookeeper", "zk://h/l"], "write that as --zookeeper h:2181 --ledgers-root /l."),
        (["--ledgers-root", "l"], "'l' is not a path"),
    ],
)
def test_an_address_that_cannot_be_used_is_said(
    started: dict[str, str], words: list[str], said: str
) -> None:
    done = CliRunner().invoke(main, ["broker", *words])
    assert done.exit_code == 2
    assert said in done.output
    assert not started


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a standalone cluster whose ZooKeeper is at port 39."""
    monkeypatch.chdir(tmp_path)
    for name in ("DIR", "SERVICE_URL", "ADMIN_URL", "ZOOKEEPER"):
        monkeypatch.delenv(f"DAYBOOK_{name}", raising=False)
    write_cluster(tmp_path / "daybook-data", zookeeper="127.0.0.1:39")
    (tmp_path / "daybook-data" / "conf").mkdir()
    (tmp_path / "daybook-data" / "conf" / "bookie-1.toml").write_text("port = 3181")
    return tmp_path / "daybook-data"


def test_repair_cookie_of_a_standalone_cluster_takes_the_settings_of_its_bookie(
    started: dict[str, str], cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it waited for a ZooKeeper at 127.0.0.1:2181."""
    config = cluster / "conf" / "bookie-1.toml"
    for directory, here in (("daybook-data/bookie-1", cluster.parent), ("bookie-1", cluster)):
        monkeypatch.chdir(here)
        done = CliRunner().invoke(main, ["bookie", "repair-cookie", "--directory", directory])
        assert done.exit_code == 0, done.output
        assert started["COMMAND"].endswith(f"--repair-cookie --config {config}")
        assert "DAYBOOK_BOOKIE_ZOOKEEPER" not in started
        started.clear()


@pytest.mark.parametrize("words", [["bookie"], ["bookie", "repair-cookie"], ["broker"]])
def test_a_part_joins_the_cluster_of_the_usual_directory(
    started: dict[str, str], cluster: Path, words: list[str]
) -> None:
    del cluster
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    names = {"DAYBOOK_BOOKIE_ZOOKEEPER", "DAYBOOK_BROKER_ZOOKEEPER"} & started.keys()
    assert [started[name] for name in names] == ["127.0.0.1:39"]


def test_a_bookie_joins_the_cluster_that_its_directory_belongs_to(
    started: dict[str, str], cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ["bookie", "--directory", str(cluster / "bookie-9")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert started["DAYBOOK_BOOKIE_ZOOKEEPER"] == "127.0.0.1:39"
    monkeypatch.setenv("DAYBOOK_ZOOKEEPER", "meant:2181")
    assert CliRunner().invoke(main, words).exit_code == 0
    assert started["DAYBOOK_BOOKIE_ZOOKEEPER"] == "meant:2181"


def test_a_part_is_not_started_at_the_usual_port_when_another_cluster_is_meant(
    started: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAYBOOK_SERVICE_URL", "pulsar://meant:6650")
    for part in ("broker", "bookie"):
        done = CliRunner().invoke(main, [part])
        assert done.exit_code == 1
        assert "say so with --zookeeper or DAYBOOK_ZOOKEEPER" in done.output
    assert not started
