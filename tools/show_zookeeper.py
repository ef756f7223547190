"""Shows what a cluster keeps in ZooKeeper: bookies, ledgers, the ledger lists of topics, owners.

    python tools/show_zookeeper.py 127.0.0.1:2181 [TOPIC]
    python tools/show_zookeeper.py HOST:PORT --tls-trusted ca.pem --user NAME --password-file FILE

It uses kazoo and the two published `.proto` files alone, none of Daybook's code: what it can read,
so can the tools of others.  With a TOPIC (a part of its name) only that one's records are shown.
In a protected tree, the metadata of ledgers can only be read with an identity.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_plus
from zlib import crc32

from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat, LedgerMetadataFormat

MAGIC = b"BookieMetadataFormatVersion\t3\n"
LEDGERS, LOGS, OWNERS = "/ledgers", "/managed-ledgers", "/namespace"


def leaves(zookeeper: KazooClient, path: str) -> Iterator[tuple[str, bytes, int]]:
    """Return every record below `path` without children: path, value, ephemeral owner (or 0)."""
    try:
        if not zookeeper.exists(path):
            return
        names = sorted(zookeeper.get_children(path))
        value, stat = zookeeper.get(path)
    except NoAuthError:
        show(f"{path}   (not readable without an identity)", "")
        return
    if not names:
        yield path, value, stat.ephemeralOwner
    for name in names:
        yield from leaves(zookeeper, f"{path.rstrip('/')}/{name}")


def varint(data: bytes) -> tuple[int, bytes]:
    """Return the number at the beginning, and the rest."""
    value = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, data[index + 1 :]
    raise ValueError("a number without an end")


def ledger_metadata(value: bytes) -> LedgerMetadataFormat:
    """Parse metadata of version 3: a line, the size of the message, the message."""
    if not value.startswith(MAGIC):
        raise ValueError(f"not ledger metadata of version 3: {value[:40]!r}")
    size, body = varint(value.removeprefix(MAGIC))
    return LedgerMetadataFormat.FromString(body[:size])


def one_line(message: Message) -> str:
    return MessageToString(message, as_one_line=True)


def show(path: str, text: str, session: int = 0) -> None:
    print(path + (f"   (ephemeral, session 0x{session:x})" if session else ""))
    for line in text.splitlines():
        print(f"    {line}")


def show_bookies(zookeeper: KazooClient) -> None:
    print("\n== bookies: the layout, who is there, who belongs to the cluster")
    for name in ("LAYOUT", "INSTANCEID"):
        show(f"{LEDGERS}/{name}", zookeeper.get(f"{LEDGERS}/{name}")[0].decode())
    for path, value, session in leaves(zookeeper, f"{LEDGERS}/available"):
        if session:
            show(path, one_line(BookieServiceInfoFormat.FromString(value)), session)
    for path, value, _ in leaves(zookeeper, f"{LEDGERS}/cookies"):
        show(path, value.decode())


def show_ledgers(zookeeper: KazooClient, wanted: str) -> None:
    print("\n== ledgers: quorums, state, fragments, and whose they are")
    for path, value, _ in leaves(zookeeper, LEDGERS):
        if not path.rpartition("/")[2].startswith("L") or not value.startswith(MAGIC):
            continue
        metadata = ledger_metadata(value)
        custom = {each.key: each.value.decode(errors="replace") for each in metadata.customMetadata}
        if wanted and wanted not in unquote_plus(custom.get("pulsar/managed-ledger", "")):
            continue
        ledger_id = int(path.removeprefix(LEDGERS).replace("/", "").replace("L", ""))
        print(f"{path}   ledger {ledger_id}")
        show_metadata(metadata, custom)


def show_metadata(metadata: LedgerMetadataFormat, custom: dict[str, str]) -> None:
    state = LedgerMetadataFormat.State.Name(metadata.state)
    if metadata.state == LedgerMetadataFormat.CLOSED:
        state += f", last entry {metadata.lastEntryId}, {metadata.length} bytes"
    quorums = (metadata.ensembleSize, metadata.quorumSize, metadata.ackQuorumSize)
    print("    E={} WQ={} AQ={}   {}".format(*quorums, state))
    for fragment in metadata.segment:
        print(f"    from entry {fragment.firstEntryId}: {' '.join(fragment.ensembleMember)}")
    for key, value in sorted(custom.items()):
        print(f"    {key} = {value}")


def owner(zookeeper: KazooClient, tenant: str, namespace: str, topic: str) -> str:
    """Return the ephemeral record of the bundle in which the hash of the topic's name lies."""
    hashed = crc32(f"persistent://{tenant}/{namespace}/{topic}".encode())
    for path, value, session in leaves(zookeeper, f"{OWNERS}/{tenant}/{namespace}"):
        if not session:  # The namespace itself, of which no bundle is owned now.
            continue
        low, high = (int(edge, 16) for edge in path.rpartition("/")[2].split("_"))
        if low <= hashed < high or hashed == high == 0xFFFFFFFF:
            bundle = path.rpartition("/")[2]
            return f"0x{hashed:08x} is in {bundle}: {json.loads(value)['nativeUrl']}"
    return f"0x{hashed:08x} is in no owned bundle"


def show_topics(zookeeper: KazooClient, wanted: str) -> None:
    print("\n== topics: the list of ledgers, the cursors, the owner")
    for tenant in sorted(zookeeper.get_children(LOGS)):
        for namespace in sorted(zookeeper.get_children(f"{LOGS}/{tenant}")):
            parent = f"{LOGS}/{tenant}/{namespace}/persistent"
            for name in sorted(zookeeper.get_children(parent) if zookeeper.exists(parent) else []):
                topic = unquote_plus(name)
                if wanted not in topic:
                    continue
                value, stat = zookeeper.get(f"{parent}/{name}")
                info = ManagedLedgerInfo.FromString(value)
                rows = [one_line(row) for row in [*info.ledgerInfo, *info.properties]]
                show(f"{parent}/{name}   (version {stat.version})", "\n".join(rows))
                print(f"    owner: {owner(zookeeper, tenant, namespace, topic)}")
                for cursor in sorted(zookeeper.get_children(f"{parent}/{name}")):
                    value, _ = zookeeper.get(f"{parent}/{name}/{cursor}")
                    show(f"{parent}/{name}/{cursor}", one_line(ManagedCursorInfo.FromString(value)))


def show_protection(zookeeper: KazooClient) -> None:
    print("\n== protection: the step, and the processes that know it")
    if zookeeper.exists("/daybook/security"):
        show("/daybook/security", zookeeper.get("/daybook/security")[0].decode())
    for path, value, session in leaves(zookeeper, "/daybook/processes"):
        show(path, value.decode(), session)


def show_owners(zookeeper: KazooClient) -> None:
    print("\n== owners: brokers, their leader, the bundles that they own, their guards")
    for root in ("/loadbalance", OWNERS, "/daybook/guards"):
        for path, value, session in leaves(zookeeper, root):
            if session:
                show(path, value.decode(), session)


def connect(arguments: argparse.Namespace) -> KazooClient:
    who = None
    if arguments.user:
        password = arguments.password_file.read_text().partition("\n")[0]
        who = [("digest", f"{arguments.user}:{password}")]
    return KazooClient(
        hosts=arguments.hosts,
        read_only=True,
        auth_data=who,
        use_ssl=arguments.tls_trusted is not None,
        ca=arguments.tls_trusted,
        certfile=arguments.tls_certificate,
        keyfile=arguments.tls_key,
        check_hostname=arguments.tls_trusted is not None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Show what a cluster keeps in ZooKeeper.")
    parser.add_argument("hosts", metavar="HOST:PORT")
    parser.add_argument("topic", nargs="?", default="")
    parser.add_argument("--tls-trusted", help="connect with TLS, and trust these authorities")
    parser.add_argument("--tls-certificate")
    parser.add_argument("--tls-key")
    parser.add_argument("--user", help="the identity, with --password-file")
    parser.add_argument("--password-file", type=Path)
    arguments = parser.parse_args()
    if bool(arguments.user) != bool(arguments.password_file):
        parser.error("--user and --password-file belong together")
    zookeeper = connect(arguments)
    zookeeper.start()
    try:
        show_bookies(zookeeper)
        show_ledgers(zookeeper, arguments.topic)
        show_topics(zookeeper, arguments.topic)
        show_owners(zookeeper)
        show_protection(zookeeper)
    finally:
        zookeeper.stop()
        zookeeper.close()


if __name__ == "__main__":
    main()
