"""The steps of docs/security.md lock a cluster as they stand, on addresses of this machine."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from cryptography import x509

from daybook.clients.cli.ports import PortChooser
from daybook.clients.cli.zookeeper import ServerTls, find_server
from daybook.wire.tls_files import TlsFiles
from tests.harness.processes import PATIENCE_S, ServerProcess, wait_until
from tests.harness.served import certificate_at

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("security-page")]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "security.md").read_text()
SECTION = PAGE.partition("\n## From nothing to a locked cluster\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
SHELL = [code for language, code in BLOCKS if language == "sh"]
FILES = [code for language, code in BLOCKS if language != "sh"]
SETTINGS = dict(zip(("zookeeper", "bookie", "broker"), FILES, strict=True))
EVERYWHERE = "0.0.0.0"
MACHINES = {"m1": "127.0.0.1", "m2": "127.0.0.2", "m3": "127.0.0.3"}
# Copy to a directory in place of another machine.
SCP = 'scp() { local to="${@: -1}"; cp "${@:1:$#-1}" "$MACHINES/${to%%:*}${to#*:}"; }\n'


DOCTOR = "daybook doctor --token-file admin.token\n"
PORTS = ("2281", "2888", "3888", "3181", "8444", "6651", "8443")
# The lists of machines are equal everywhere; all else that names m1 is for m1 alone.
OWN = re.compile(r'\bm1\b(?!:[0-9]|", "m2)')


@dataclass
class Machines:
    """The directories of three machines, and that of the operator."""

    directory: Path
    ports: dict[str, int]  # by the ports of the page

    @property
    def operator(self) -> Path:
        return self.directory / "operator"

    def root(self, machine: str) -> Path:
        return self.directory / MACHINES[machine]

    def etc(self, machine: str) -> Path:
        return self.root(machine) / "etc" / "daybook"

    def here(self, text: str) -> str:
        """Return code of the page with the addresses of this machine."""
        text = re.sub(r"\bm([123])\b", lambda found: MACHINES[found[0]], text)
        ports = "|".join(self.ports)
        return re.sub(rf"\b(?:{ports})\b", lambda found: str(self.ports[found[0]]), text)

    def run(self, *blocks: str) -> str:
        """Run blocks of the page in one shell of the operator, and return what they print."""
        environ = {n: v for n, v in os.environ.items() if not n.startswith("DAYBOOK_")}
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        environ["MACHINES"] = str(self.directory)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", SCP + "".join(map(self.here, blocks))],
            cwd=self.operator,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def own(self, machine: str, settings: str) -> str:
        """Return a file of the page as the machine has it."""
        own = self.here(OWN.sub(machine, settings))
        # All machines are this one, so each process listens on its own address alone.
        own = own.replace("0.0.0.0", MACHINES[machine])
        return re.sub(r"(?<![\w.])/(?=etc/|var/)", f"{self.root(machine)}/", own)

    def start(self, machine: str, part: str) -> ServerProcess:
        """Write the settings of a bookie or broker as the page shows them, and start it."""
        config = self.etc(machine) / f"{part}.toml"
        config.write_text(self.own(machine, SETTINGS[part]))
        module = "daybook.broker" if part == "broker" else "daybook.bookie.server"
        log = self.root(machine) / f"{part}.log"
        return ServerProcess(module, "--config", str(config), log=log)

    def start_zookeeper(self, machine: str) -> "subprocess.Popen[bytes]":
        """Start a server of ZooKeeper with the file of the page."""
        etc = self.etc(machine)
        name = MACHINES[machine]
        files = TlsFiles(etc / f"{name}.pem", etc / f"{name}.key", etc / "authority.pem")
        directory = self.root(machine) / "server"
        port = self.ports["2281"]
        tls = ServerTls(files, "required")
        server = find_server(directory, port, zookeeper_home=None, environ=os.environ, tls=tls)
        server.prepare()
        own = self.own(machine, SETTINGS["zookeeper"])
        (directory / "zoo.cfg").write_text(f"{own}secureClientPortAddress={name}\n")
        data = self.root(machine) / "var" / "lib" / "zookeeper"
        data.mkdir(parents=True)
        (data / "myid").write_text(machine.removeprefix("m"))
        with (directory / "log").open("wb") as log:
            return subprocess.Popen(server.command(), stdout=log, stderr=subprocess.STDOUT)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    with PortChooser(Random()) as ports:
        made = Machines(tmp_path, {port: ports.any(EVERYWHERE) for port in PORTS})
    made.operator.mkdir()
    for machine in MACHINES:
        made.etc(machine).mkdir(parents=True)
        (made.root(machine) / "etc" / "zookeeper").mkdir()
    return made


def test_an_operator_locks_a_cluster(machines: Machines) -> None:
    began = time.monotonic()
    certificates, tokens, files, variables, records, rights, traffic, renewal = SHELL
    machines.run(certificates, tokens, files)
    assert {path.name for path in machines.etc("m2").iterdir()} == {
        *("authority.pem", "127.0.0.2.pem", "127.0.0.2.key", "token-public.pem", "broker.token"),
        "zookeeper-daybook.password",
    }
    servers = [machines.start_zookeeper(machine) for machine in MACHINES]
    processes: list[ServerProcess] = []
    try:
        for part in ("bookie", "broker"):
            started = [machines.start(machine, part) for machine in MACHINES]
            processes += started
            for each in started:
                each.read_ready()
                assert each.ready["http_port"] is None
        machines.run(variables, records)
        assert rights.startswith(DOCTOR)
        # This machine may have faults of its own, such as a full disk.
        report = machines.run(variables, f"{DOCTOR.rstrip()} || true\n")
        assert "unknown" not in report
        shown = machines.run(variables, rights.removeprefix(DOCTOR), traffic)
        assert shown.splitlines()[-3:] == ["1000", "locked", "locked"]
        assert "open" not in shown
        assert time.monotonic() - began < 900, "a quarter of an hour is promised"
        _renew(machines, renewal)
        for machine in MACHINES:
            for part in ("bookie", "broker"):
                log = (machines.root(machine) / f"{part}.log").read_text()
                assert "everybody who reaches this" not in log
                assert "credentials over ports without TLS" not in log
    finally:
        for process in processes:
            process.kill()
        for server in servers:
            server.kill()
            server.wait()


def _renew(machines: Machines, renewal: str) -> None:
    trusted = str(machines.operator / "certificates" / "authority.pem")

    def served() -> x509.Certificate:
        return certificate_at(("127.0.0.1", machines.ports["6651"]), trusted)

    before = served().serial_number
    machines.run(renewal)
    wait_until(lambda: served().serial_number != before, "the new certificate is served")


def test_there_are_no_other_blocks() -> None:
    assert [language for language, _ in BLOCKS] == [
        *("sh", "sh", "sh", "properties", "toml", "toml", "sh", "sh", "sh", "sh", "sh")
    ]
