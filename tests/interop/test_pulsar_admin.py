"""Apache Pulsar's command line, unmodified: the commands of `pulsar_admin.txt`."""

import subprocess
from pathlib import Path

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.interop.apache import pulsar_admin_here
from tests.interop.letters import admin_urls

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
COMMANDS = [
    line
    for line in (HERE / "pulsar_admin.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
PATIENCE_S = 600.0
# A refusal has to say what is not possible.
REFUSED = (
    ("namespaces set-encryption-required t/ns --enable", "encryption_required"),
    ("namespaces set-clusters t/ns --clusters elsewhere", "replicate"),
    ("namespaces set-retention t/ns --time 0 --size 5M", "retention"),
    ("namespaces set-max-producers-per-topic none/none --max-producers-per-topic 1", "none/none"),
    ("topicPolicies set-max-producers persistent://public/default/none -p 1", "does not exist"),
    ("brokers update-dynamic-config --config x --value 1", "while a broker runs"),
)


def run(cluster: StandaloneProcess, commands: list[str], where: Path) -> list[tuple[bool, str]]:
    """Run the commands in one process; return for each if it passed, and what it wrote."""
    admin = pulsar_admin_here()
    program = HERE / "java" / "Admin.java"
    url = admin_urls(cluster)[0]
    java = admin.command(where, str(program), cluster.service_url, url)
    broker = url.removeprefix("http://")
    lines = [command.replace("BROKER", broker).replace(" ", "\t") for command in commands]
    done = subprocess.run(
        java,
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    results: list[tuple[bool, str]] = []
    written: list[str] = []
    for line in done.stdout.splitlines():
        if line in ("<<ok>>", "<<failed>>"):
            results.append((line == "<<ok>>", "\n".join(written).strip()))
            written = []
        else:
            written.append(line)
    assert len(results) == len(commands), done.stderr
    return results


def test_the_commands_of_pulsars_tool_pass(tmp_path: Path) -> None:
    assert len(COMMANDS) >= 120
    refused = [command for command, _ in REFUSED]
    with StandaloneProcess(bookies=1, brokers=1) as cluster:
        # Before the end of the table, which deletes what the commands work on.
        at = COMMANDS.index("topics terminate persistent://t/ns/one")
        results = run(cluster, [*COMMANDS[:at], *refused, *COMMANDS[at:]], tmp_path)
    answers = dict(zip([*COMMANDS[:at], *refused, *COMMANDS[at:]], results, strict=True))
    failed = [(c, answers[c][1]) for c in COMMANDS if not answers[c][0]]
    assert not failed
    for command, why in REFUSED:
        passed, text = answers[command]
        assert not passed, command
        assert why in text, (command, text)
