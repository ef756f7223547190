"""Which settings a bookie or a broker is given on the command line."""

import os
from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from clients.cli.main import main


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the part that would have been started."""
    environment: dict[str, str] = {}

    def execve(path: str, command: list[str], environ: Mapping[str, str]) -> None:
        environment.update(environ)

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metadata", "etcd://h:1/ledgers"], "'etcd' is none of"),
        (["--metadata", "zk+flat://h:1/ledgers"], "'zk+flat' is none of"),
        (["--metadata", "zk://h/l", "--zookeeper", "h:1"], "leave --zookeeper"),
        (["--metadata", "zk://h/l", "--ledgers-root", "/l"], "leave --zookeeper"),
    ],
)
def test_an_address_that_cannot_be_used_is_said(
    started: dict[str, str], words: list[str], said: str
) -> None:
    done = CliRunner().invoke(main, ["broker", *words])
    assert done.exit_code == 2
    assert said in done.output
    assert not started
