"""Commands on Spark ask the cluster before Spark starts, and end with a sentence on a signal."""

import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from daybook.clients.cli import spark as commands
from daybook.clients.cli import streams
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.main import main
from daybook.clients.pipelines import session

PIPELINE = """
name = "clean"
checkpoint = "c"
[source]
topic = "a"
{source}
[sink]
topic = "b"
"""


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address at which nobody listens."""
    monkeypatch.setattr(commands, "_CONTACT_S", 0.2)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"pulsar://127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture
def during_start() -> list[int]:
    """Return the signals that come while Spark starts."""
    return []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, during_start: list[int]) -> list[str]:
    """Put a session that does nothing in the place of Spark's, and return what starts and ends."""
    seen: list[str] = []

    @contextmanager
    def spark_session(name: str, settings: Mapping[str, str]) -> Iterator[Any]:
        del settings
        seen.append(name)
        for number in during_start:
            signal.raise_signal(number)
        seen.append("up")
        context = SimpleNamespace(setLogLevel=lambda level: seen.append(f"level {level}"))
        try:
            yield SimpleNamespace(sparkContext=context)
        finally:
            seen.append("down")

    monkeypatch.setattr(session, "spark_session", spark_session)
    return seen


@pytest.mark.parametrize(
    "command",
    [
        ("archive", "t", "DIR"),
        ("replay", "DIR", "t"),
        ("copy", "a", "b", "--checkpoint", "DIR"),
        ("mirror", "a", "b", "--checkpoint", "DIR"),
        ("run", "FILE"),
    ],
)
def test_a_cluster_that_is_away_is_told_before_spark_starts(
    nobody: str, started: list[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE.format(source=""))
    words = [each.replace("DIR", str(tmp_path)).replace("FILE", str(file)) for each in command]
    shown = CliRunner().invoke(main, ["pipeline", *words, "--service-url", nobody])
    assert shown.exit_code == 1
    (line,) = shown.stderr.splitlines()
    assert line.startswith(f"Error: No broker answers at {nobody} (no broker can be reached: ")
    assert "timeout_s" not in line
    assert "--service-url" in line
    assert started == []


@pytest.mark.parametrize("command", ["copy", "mirror"])
def test_the_option_of_the_source_is_named(
    nobody: str, started: list[str], tmp_path: Path, command: str
) -> None:
    words = ["pipeline", command, "a", "b", "--checkpoint", str(tmp_path), "--source-url", nobody]
    shown = CliRunner().invoke(main, [*words, "--service-url", "pulsar://127.0.0.1:1"])
    assert shown.exit_code == 1
    assert shown.stderr.endswith("say where yours is with --source-url.\n")
    assert started == []


def test_the_file_of_the_source_is_named(nobody: str, started: list[str], tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE.format(source=f'"service.url" = "{nobody}"'))
    words = ["pipeline", "run", str(file), "--service-url", "pulsar://127.0.0.1:1"]
    shown = CliRunner().invoke(main, words)
    assert shown.stderr.endswith(f"with --service-url, or with service.url in {file}.\n")
    assert started == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_work_with_a_sentence_after_spark_has_ended(
    started: list[str], capsys: pytest.CaptureFixture[str], number: int
) -> None:
    before = signal.getsignal(number)
    with (
        pytest.raises(SystemExit) as ended,
        commands.ended_by_signals(),
        commands.open_spark("x", {}),
    ):
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert capsys.readouterr().err.splitlines() == [
        "Starting Spark.",
        "Stopped. Run the command again to go on.",
    ]
    assert started == ["daybook x", "up", "level OFF", "down"]
    assert signal.getsignal(number) is before


def test_a_signal_during_the_start_of_spark_waits_for_its_end(
    started: list[str], during_start: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a start would leave a Java process behind."""
    during_start.append(signal.SIGINT)
    work: list[str] = []
    with (
        pytest.raises(SystemExit) as ended,
        commands.ended_by_signals(),
        commands.open_spark("x", {}),
    ):
        work.append("begun")
    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines() == [
        "Starting Spark.",
        "Stopping as soon as Spark has started.",
        "Stopped. Run the command again to go on.",
    ]
    assert started == ["daybook x", "up", "down"]
    assert not work


def test_a_signal_before_spark_starts_ends_the_command(
    started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, commands.ended_by_signals():
        signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Stopped. Run the command again to go on.\n"
    assert started == []


def test_the_interrupt_of_pyspark_is_a_signal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, commands.ended_by_signals():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Stopped. Run the command again to go on.\n"


# -- bookies and ZooKeeper


ON_BOOKIES = ("--bookie-tls", "--bookie-user", "ann", "--bookie-password-file", "secret")
ON_ZOOKEEPER = ("--zookeeper-tls", "--zookeeper-user", "bob", "--zookeeper-password-file", "word")
OF_TLS = ("--tls-trusted", "ca.pem", "--tls-certificate", "c.pem", "--tls-key", "c.key")
OPTIONS = {
    "bookie.tls": "true",
    "bookie.user": "ann",
    "bookie.password.file": "secret",
    "zookeeper.tls": "true",
    "zookeeper.user": "bob",
    "zookeeper.password.file": "word",
    "tls.trusted": "ca.pem",
    "tls.certificate": "c.pem",
    "tls.key": "c.key",
}


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Mapping[str, str]]:
    """Return the sources of the pipelines that commands make; the commands end there."""
    found: list[Mapping[str, str]] = []

    def stop(pipeline: Any, _: str) -> None:
        found.append(pipeline.source)
        raise UserError("That is enough.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(streams, "_check_clusters", stop)
    return found


def pipeline(*words: str, **variables: str) -> str:
    shown = CliRunner().invoke(main, ["pipeline", *words], env=variables)
    assert shown.exit_code in (1, 2), shown.output
    return " ".join(shown.stderr.split())


@pytest.mark.parametrize("command", ["copy", "mirror", "run"])
def test_commands_hand_the_options_about_bookies_to_the_source(
    command: str, sources: list[Mapping[str, str]], tmp_path: Path
) -> None:
    Path("p.toml").write_text(PIPELINE.format(source=""))
    words = ("p.toml",) if command == "run" else ("a", "b", "--checkpoint", "c")
    plain = ("--service-url", "pulsar://here:1")
    pipeline(command, *words, *plain, *ON_BOOKIES, *ON_ZOOKEEPER, *OF_TLS)
    pipeline(command, *words, *plain, DAYBOOK_BOOKIES_TLS="true", DAYBOOK_TLS_TRUSTED="ca.pem")
    pipeline(command, *words, *plain)
    files = {"secret", "word", "ca.pem", "c.pem", "c.key"}
    wanted = {k: str(tmp_path / v) if v in files else v for k, v in OPTIONS.items()}
    given, by_variables, none = sources
    assert given.items() >= wanted.items()
    assert by_variables.items() >= {"bookie.tls": "true"}.items()
    assert by_variables["tls.trusted"] == wanted["tls.trusted"]
    assert not none.keys() & OPTIONS.keys()
    assert "for brokers with TLS" in pipeline(command, *words, *plain, *OF_TLS)
    assert "belong together" in pipeline(command, *words, *plain, "--bookie-user", "ann")


def test_options_about_bookies_are_for_the_source_of_a_copy(
    sources: list[Mapping[str, str]],
) -> None:
    words = ("copy", "a", "b", "--checkpoint", "c", "--service-url", "pulsar://here:1")
    pipeline(*words, "--source-url", "pulsar://there:1", "--bookie-tls")
    assert sources[0]["bookie.tls"] == "true"
    pipeline(*words, "--source-url", "pulsar://there:1", DAYBOOK_BOOKIES_TLS="true")
    assert "bookie.tls" not in sources[1], "the variable is for the cluster of the command"
    kafka = pipeline(*words, "--source-url", "kafka://there:1", "--bookie-tls")
    assert "--bookie-tls is for bookies, and Kafka has none" in kafka


def test_options_about_bookies_of_another_cluster_are_refused(
    sources: list[Mapping[str, str]],
) -> None:
    Path("p.toml").write_text(PIPELINE.format(source='service.url = "pulsar://there:1"'))
    words = ("run", "p.toml", "--service-url", "pulsar://here:1")
    assert "--zookeeper-tls is for the bookies of the cluster of this" in pipeline(
        *words, "--zookeeper-tls"
    )
    pipeline(*words, DAYBOOK_ZOOKEEPER_TLS="true")
    (source,) = sources
    assert "zookeeper.tls" not in source
