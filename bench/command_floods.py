"""Measures what a client notices while another address floods its broker with commands.

    python -m bench.command_floods [CONNECTIONS] [COMMAND] [SECONDS] [--reads]

The client sends one message after the other, 20 ms apart.  From another address of this machine,
CONNECTIONS (400) clients send COMMAND (seek, lookup, ping) for consumers and topics that they do
not have, without a pause, and read the answers only with `--reads`.  Printed are the times of the
sends and the memory of the broker: before, meanwhile, and twice after the connections have closed.
"""

import argparse
import os
import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from daybook.wire.messages.registry import encode
from daybook.wire.proto import pulsar_pb2 as pb

_COMMANDS = {
    "seek": pb.CommandSeek(consumer_id=9, request_id=2),
    "lookup": pb.CommandLookupTopic(topic="persistent://public/default/x", request_id=1),
    "ping": pb.CommandPing(),
}
_STRANGER = "127.0.4.1"
_BLOCK_BYTES = 16 << 10
_PAUSE_S = 0.02
_LOOK_S = 5.0
_NICE = 5  # In a network, the flood would have a machine of its own.


class Sends:
    """A client that sends, and how long its sends took in milliseconds."""

    def __init__(self, service_url: str) -> None:
        self._took_ms: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(service_url,))
        self._thread.start()

    def _run(self, service_url: str) -> None:
        with (
            blocking.connect(service_url) as client,
            client.create_producer("innocent") as producer,
        ):
            while not self._ends.wait(_PAUSE_S):
                began = time.perf_counter()
                producer.send(b"x")
                self._took_ms.append((time.perf_counter() - began) * 1000)

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    def show(self, what: str, seconds: float, pid: int) -> None:
        self._took_ms.clear()
        time.sleep(seconds)
        took = sorted(self._took_ms)
        times = "none"
        if took:
            p99 = took[int(len(took) * 0.99)]
            times = f"p50 {took[len(took) // 2]:.1f}, p99 {p99:.1f}, most {took[-1]:.1f} ms"
        print(f"{what}: {len(took)} sends, {times}; broker {_rss_mb(pid)} MB", flush=True)


def _rss_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) // 1024


def _connect(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), source_address=(_STRANGER, 0))
    peer.sendall(bytes(encode(pb.CommandConnect(client_version="x", protocol_version=21))))
    peer.recv(1000)
    peer.setblocking(False)
    return peer


def _flood(peers: list[socket.socket], block: bytes, seconds: float, *, reads: bool) -> None:
    os.nice(_NICE)
    living = {peer.fileno(): peer for peer in peers}
    poll = select.epoll()
    for number in living:
        poll.register(number, select.EPOLLOUT | (select.EPOLLIN if reads else 0))
    end = time.monotonic() + seconds
    while living and time.monotonic() < end:
        for number, events in poll.poll(0.1):
            try:
                with suppress(BlockingIOError):
                    if events & select.EPOLLIN:
                        living[number].recv(1 << 16)
                    if events & select.EPOLLOUT:
                        living[number].send(block)
            except OSError:
                del living[number]
                poll.unregister(number)
    poll.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.command_floods")
    parser.add_argument("connections", nargs="?", type=int, default=400)
    parser.add_argument("command", nargs="?", choices=_COMMANDS, default="seek")
    parser.add_argument("seconds", nargs="?", type=float, default=12.0)
    parser.add_argument("--reads", action="store_true", help="read the answers")
    options = parser.parse_args()
    command = bytes(encode(_COMMANDS[options.command]))
    block = command * (_BLOCK_BYTES // len(command))
    with StandaloneProcess(brokers=1, options=ANY_PORTS) as cluster:
        broker = next(part for part in cluster.parts() if "broker" in part["name"])
        pid, port = int(broker["pid"]), int(cluster.service_url.rpartition(":")[2])
        sends = Sends(cluster.service_url)
        try:
            time.sleep(_LOOK_S)
            sends.show("before", _LOOK_S, pid)
            peers = [_connect(port) for _ in range(options.connections)]
            flood = threading.Thread(
                target=_flood,
                args=(peers, block, options.seconds),
                kwargs={"reads": options.reads},
            )
            flood.start()
            sends.show(f"{options.connections} x {options.command}", options.seconds, pid)
            flood.join()
            for peer in peers:
                peer.close()
            for when in ("after", "later"):
                sends.show(when, _LOOK_S, pid)
        finally:
            sends.end()


if __name__ == "__main__":
    main()
