"""One Kafka broker in KRaft mode, from the jars that `tests/interop/fetch.sh` brings.

It has the settings that Kafka ships, except that internal topics have one replica, as there is one
broker.
"""

import base64
import os
import socket
import subprocess
from pathlib import Path

from tests.harness.processes import end, is_open, start, wait_until
from tests.interop.apache import kafka_here

_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:-UsePerfData")
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Kafka:
    """A broker that answers when the constructor returns.  It ends with `close`."""

    def __init__(self, directory: Path) -> None:
        jars = kafka_here()
        self.version = jars.version
        directory.mkdir(parents=True)
        port, controller = _free_port(), _free_port()
        self.address = f"127.0.0.1:{port}"
        settings = directory / "server.properties"
        settings.write_text(
            _SETTINGS.format(port=port, controller=controller, data=directory / "data")
        )
        cluster = base64.urlsafe_b64encode(b"d" + os.urandom(15)).decode().rstrip("=")
        words = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings))
        subprocess.run(
            jars.command(directory, *words),
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        command = jars.command(directory, "kafka.Kafka", str(settings), jvm=_JVM)
        self._process = start(command, directory / "log.txt")
        wait_until(lambda: self._answers(port), f"Kafka on port {port}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        end(self._process)

    def _answers(self, port: int) -> bool:
        assert self._process.poll() is None, "Kafka has ended: its log says why"
        return is_open(port)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
