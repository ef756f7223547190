"""Apache Pulsar's whole broker, as a process beside a cluster of ours, or beside Apache's bookies.

The broker joins the ZooKeeper and the bookies of a standalone cluster.  It finds the namespaces and
topics that our brokers have left there, and our brokers find its own.
"""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from daybook.clients.cli.ports import PortChooser
from tests.harness.processes import Process, end, http_get, is_open, start, wait_until
from tests.interop.apache import Apache

_JVM = (
    *("-Xmx512m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
)
_SMALL: Mapping[str, object] = {
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "numOrderedExecutorThreads": 2,
    "managedLedgerCacheSizeMB": 16,
}


class PulsarBroker:
    """One broker of Apache Pulsar, in the cluster of this ZooKeeper (HOST:PORT).

    `settings` are added to its configuration file.
    """

    def __init__(
        self,
        apache: Apache,
        zookeeper: str,
        directory: Path,
        *,
        jvm: Sequence[str] = _JVM,
        **settings: object,
    ) -> None:
        self._apache = apache
        self._jvm = jvm
        self._directory = directory
        with PortChooser(Random()) as ports:
            self._port, self._http_port = ports.any(), ports.any()
        self._settings = {
            "metadataStoreUrl": f"zk:{zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{zookeeper}",
            "bookkeeperMetadataServiceUri": f"zk+hierarchical://{zookeeper}/ledgers",
            "clusterName": "standalone",
            "brokerServicePort": self._port,
            "webServicePort": self._http_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            "functionsWorkerEnabled": "false",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "topicLevelPoliciesEnabled": "false",
            "systemTopicEnabled": "false",
            **_SMALL,
            **settings,
        }
        self._process: Process | None = None

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self._port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the broker, and return when it serves."""
        config = self._directory / "broker.conf"
        self._directory.mkdir(parents=True, exist_ok=True)
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        main = "org.apache.pulsar.PulsarBrokerStarter"
        command = self._apache.command(
            self._directory, main, "--broker-conf", str(config), jvm=self._jvm
        )
        process = self._process = start(command, self._directory / "broker.txt")
        wait_until(lambda: is_open(self._port) or process.poll() is not None, "Pulsar's broker")
        assert process.poll() is None, (self._directory / "broker.txt").read_text()[-4000:]
        # The port is open a moment before the broker may own topics.
        wait_until(self._is_ready, "Pulsar's broker is ready")

    def _is_ready(self) -> bool:
        try:
            return http_get(f"{self.admin_url}/admin/v2/brokers/ready")[0] == 200
        except OSError:
            return False  # The HTTP port is opened later than the other one.

    def stop(self) -> None:
        """End the broker as an operator does: it closes its topics."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            end(self._process, number)
            self._process = None
