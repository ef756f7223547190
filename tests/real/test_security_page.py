"""The steps of docs/security.md lock a cluster as they stand, on addresses of this machine."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from cryptography import x509

from daybook.clients.cli.ports import PortChooser
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.processes import PATIENCE_S, ServerProcess, wait_until
from tests.harness.served import certificate_at

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("security-page")]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "security.md").read_text()
SECTION = PAGE.partition("\n## From nothing to a locked cluster\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
SHELL = [code for language, code in BLOCKS if language == "sh"]
EVERYWHERE = "0.0.0.0"
MACHINES = {"m1": "127.0.0.1", "m2": "127.0.0.2", "m3": "127.0.0.3"}
# Copy to a directory in place of another machine.
SCP = 'scp() { local to="${@: -1}"; cp "${@:1:$#-1}" "$MACHINES/${to%%:*}${to#*:}"; }\n'


@dataclass
class Machines:
    """The directories of three machines, and that of the operator."""

    directory: Path
    zookeeper: str
    tls_port: int
    https_port: int

    @property
    def operator(self) -> Path:
        return self.directory / "operator"

    def root(self, machine: str) -> Path:
        return self.directory / MACHINES[machine]

    def etc(self, machine: str) -> Path:
        return self.root(machine) / "etc" / "daybook"

    def here(self, text: str) -> str:
        """Return code of the page with the addresses of this machine."""
        text = text.replace("m1:2181,m2:2181,m3:2181", self.zookeeper)
        text = re.sub(r"\bm([123])\b", lambda found: MACHINES[found[0]], text)
        return text.replace("6651", str(self.tls_port)).replace("8443", str(self.https_port))

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
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, machine: str) -> ServerProcess:
        """Write the settings of a broker as the page shows them, and start the broker."""
        (settings,) = [code for language, code in BLOCKS if language == "toml"]
        own = self.here(re.sub(r"\bm1\b(?!:2181)", machine, settings))
        # All machines are this one, so each broker listens on its own address alone.
        own = own.replace("0.0.0.0", MACHINES[machine])
        own = own.replace("/etc/daybook", str(self.etc(machine)))
        config = self.etc(machine) / "broker.toml"
        config.write_text(own)
        log = self.root(machine) / "log"
        return ServerProcess("daybook.broker", "--config", str(config), log=log)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Run ZooKeeper and three bookies, which the page does not lock."""
    data = tmp_path / "data"
    with (
        StandaloneProcess(directory=data, brokers=1, options=ANY_PORTS) as cluster,
        PortChooser(Random()) as ports,
    ):
        cluster.local("kill", "broker-1")
        made = Machines(tmp_path, cluster.zookeeper, ports.any(EVERYWHERE), ports.any(EVERYWHERE))
        ports.release()
        made.operator.mkdir()
        for machine in MACHINES:
            made.etc(machine).mkdir(parents=True)
        yield made


def test_an_operator_locks_a_cluster(machines: Machines) -> None:
    began = time.monotonic()
    certificates, tokens, files, rights, traffic, renewal = SHELL
    machines.run(certificates, tokens, files)
    assert {path.name for path in machines.etc("m2").iterdir()} == {
        *("authority.pem", "127.0.0.2.pem", "127.0.0.2.key", "token-public.pem", "broker.token")
    }
    brokers = [machines.start(machine) for machine in MACHINES]
    try:
        for broker in brokers:
            broker.read_ready()
            assert (broker.ready["port"], broker.ready["http_port"]) == (None, None)
        shown = machines.run(rights, traffic).splitlines()
        assert shown[-2:] == ["1000", "locked"]
        listed = "\n".join(shown)
        assert all(f"{address}:{machines.https_port}" in listed for address in MACHINES.values())
        assert time.monotonic() - began < 600, "ten minutes are promised"
        _renew(machines, renewal)
        for machine in MACHINES:
            log = (machines.root(machine) / "log").read_text()
            assert "everybody who reaches this broker" not in log
            assert "credentials over ports without TLS" not in log
    finally:
        for broker in brokers:
            broker.kill()


def _renew(machines: Machines, renewal: str) -> None:
    trusted = str(machines.operator / "certificates" / "authority.pem")

    def served() -> x509.Certificate:
        return certificate_at(("127.0.0.1", machines.tls_port), trusted)

    before = served().serial_number
    machines.run(renewal)
    wait_until(lambda: served().serial_number != before, "the new certificate is served")


def test_there_are_no_other_blocks() -> None:
    assert [language for language, _ in BLOCKS] == ["sh", "sh", "sh", "toml", "sh", "sh", "sh"]
