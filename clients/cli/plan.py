"""Plan a standalone cluster: its parts, ports and settings.  Nothing is started here."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybook.clients.cli.directory import Directory, Ports, Saved
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.ports import HOST, PortChooser
from daybook.clients.cli.supervisor import Part
from daybook.clients.cli.zookeeper import Server, find_server

SERVICE_PORT = 6650
ADMIN_PORT = 8080
ZOOKEEPER_PORT = 2181
_BOOKIE_PORT = 3181
_BOOKIE_HTTP_PORT = 8000
_BOOKIES = 3
_ACK_QUORUM = 2
_PREFIXES = ("DAYBOOK_BOOKIE_", "DAYBOOK_BROKER_")
# Each part has its own value of these, or all parts must agree with ZooKeeper and each other.
_OWN_SETTINGS = frozenset(
    (
        *("name", "bookie_id", "directories", "host", "advertised_host", "port", "http_port"),
        *("zookeeper", "ledgers_root", "cluster", "exit_with_parent"),
    )
)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of the user; None: the default, or the value of the last start."""

    bookies: int | None
    brokers: int
    port: int | None
    admin_port: int | None
    zookeeper_port: int | None
    zookeeper: str | None
    zookeeper_home: Path | None
    ephemeral: bool
    settings: tuple[str, ...] = ()  # bookie.NAME=VALUE or broker.NAME=VALUE

    @property
    def any_ports(self) -> bool:
        """True if ports that the user does not give, and that no start has saved, are free ones."""
        return self.ephemeral or self.port == 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The result: everything that is needed to start the cluster."""

    parts: tuple[Part, ...]  # in the order in which they are shown
    zookeeper: str
    service_url: str
    admin_url: str
    saved: Saved
    ack_quorum: int  # the number of bookies that store an entry before it is acknowledged
    ignored: tuple[str, ...]  # environment variables that have no effect here


def make_plan(
    options: ClusterOptions, directory: Directory, environ: Mapping[str, str], ports: PortChooser
) -> Plan:
    """Plan the cluster, and write the settings of its parts.

    Raise `UserError` if the options cannot be satisfied.
    """
    extra = _parse_settings(options.settings)
    before = directory.load()
    external = _external_zookeeper(options, before, directory)
    count = _count_bookies(options, before, directory)
    saved = Saved(
        zookeeper=external,
        zookeeper_port=0 if external else _zookeeper_port(options, before, ports),
        brokers=tuple(_broker_ports(i, options, before, ports) for i in range(options.brokers)),
        bookies=tuple(_bookie_ports(i, options, before, ports) for i in range(count)),
    )
    zookeeper = external or f"{HOST}:{saved.zookeeper_port}"
    parts: list[Part] = []
    if not external:
        server = find_server(
            directory.part("zookeeper"),
            saved.zookeeper_port,
            zookeeper_home=options.zookeeper_home,
            environ=environ,
        )
        server.prepare()
        parts.append(_zookeeper_part(server, directory, environ))
    for index, its_ports in enumerate(saved.bookies):
        parts.append(_bookie_part(index, its_ports, zookeeper, directory, environ, extra["bookie"]))
    for index, its_ports in enumerate(saved.brokers):
        parts.append(_broker_part(index, its_ports, zookeeper, directory, environ, extra["broker"]))
    addresses = ",".join(f"{HOST}:{broker.port}" for broker in saved.brokers)
    http_addresses = ",".join(f"{HOST}:{broker.http_port}" for broker in saved.brokers)
    return Plan(
        parts=tuple(parts),
        zookeeper=zookeeper,
        service_url=f"pulsar://{addresses}",
        admin_url=f"http://{http_addresses}",
        saved=saved,
        ack_quorum=_ack_quorum(count, {**environ, **extra["broker"]}),
        ignored=tuple(sorted(name for name in environ if is_for_one_part(name))),
    )


def _parse_settings(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the environment variables that pass these settings to bookies and to brokers.

    Raise `UserError` for a malformed setting, and for one whose value differs between parts.
    """
    extra: dict[str, dict[str, str]] = {"bookie": {}, "broker": {}}
    for setting in settings:
        path, equals, value = setting.partition("=")
        kind, _, name = path.partition(".")
        if kind not in extra or not name or not equals:
            raise UserError(
                f"--set {setting}: write broker.NAME=VALUE or bookie.NAME=VALUE, as"
                " broker.roll_entries=100000."
            )
        if name in _OWN_SETTINGS:
            raise UserError(
                f"--set {setting}: {name} cannot be set, because each part of a cluster has its"
                " own."
            )
        extra[kind][f"DAYBOOK_{kind.upper()}_{name.upper().replace('.', '__')}"] = value
    return extra


def _ack_quorum(bookies: int, environ: Mapping[str, str]) -> int:
    """Return the ack quorum that brokers use: a setting, else 2, or 1 if there is one bookie."""
    told = environ.get("DAYBOOK_BROKER_QUORUMS__ACK", "")
    return int(told) if told.isdecimal() else min(bookies, _ACK_QUORUM)


def is_for_one_part(name: str) -> bool:
    """Return True for the variable of a setting that differs between parts of one kind."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix).lower() in _OWN_SETTINGS
    return False


def _external_zookeeper(options: ClusterOptions, before: Saved | None, directory: Directory) -> str:
    if before is None:
        return options.zookeeper or ""
    if options.zookeeper not in (None, before.zookeeper):
        theirs = before.zookeeper or "its own ZooKeeper"
        raise UserError(
            f"The cluster in {directory.path} is registered in {theirs}: leave out --zookeeper."
        )
    return before.zookeeper


def _count_bookies(options: ClusterOptions, before: Saved | None, directory: Directory) -> int:
    known = 0 if before is None else len(before.bookies)
    had = sum(directory.part(f"bookie-{number}").exists() for number in range(1, known + 1))
    if options.bookies is not None and options.bookies < had:
        raise UserError(
            f"{had} bookies in {directory.path} have data: start with --bookies {had} or more."
        )
    return options.bookies or known or _BOOKIES


def _zookeeper_port(options: ClusterOptions, before: Saved | None, ports: PortChooser) -> int:
    usual = 0 if options.any_ports else ZOOKEEPER_PORT
    if options.zookeeper_port is None and before is not None:
        usual = before.zookeeper_port
    port = usual if options.zookeeper_port is None else options.zookeeper_port
    return ports.exactly(
        port,
        "ZooKeeper",
        "choose another with --zookeeper-port (0: any), or use the ZooKeeper there is with"
        " --zookeeper HOST:PORT",
    )


def _broker_ports(
    index: int, options: ClusterOptions, before: Saved | None, ports: PortChooser
) -> Ports:
    if before is not None and index < len(before.brokers):
        usual = before.brokers[index]
    elif options.any_ports:
        usual = Ports(0, 0)
    else:
        usual = Ports(SERVICE_PORT + index, ADMIN_PORT + index)
    if index == 0:
        port = usual.port if options.port is None else options.port
        http_port = usual.http_port if options.admin_port is None else options.admin_port
        remedy = "choose another with {} (0: any)"
        return Ports(
            ports.exactly(port, "the service", remedy.format("--port")),
            ports.exactly(http_port, "the admin interface", remedy.format("--admin-port")),
        )
    return Ports(
        ports.preferably(_next_port(options.port, usual.port, index)),
        ports.preferably(_next_port(options.admin_port, usual.http_port, index)),
    )


def _next_port(first: int | None, usual: int, index: int) -> int:
    """Return the port of a further broker, 0 for any: the ports follow that of the first one."""
    if first is None:
        return usual
    return first + index if first else 0


def _bookie_ports(
    index: int, options: ClusterOptions, before: Saved | None, ports: PortChooser
) -> Ports:
    if before is not None and index < len(before.bookies):
        usual = before.bookies[index]
    elif options.any_ports:
        usual = Ports(0, 0)
    else:
        usual = Ports(_BOOKIE_PORT + index, _BOOKIE_HTTP_PORT + index)
    return Ports(ports.preferably(usual.port), ports.preferably(usual.http_port))


def _zookeeper_part(server: Server, directory: Directory, environ: Mapping[str, str]) -> Part:
    return Part(
        name="zookeeper",
        kind="zookeeper",
        command=server.command,
        log=directory.log("zookeeper"),
        environ=environ,
        facts={"address": f"{HOST}:{server.port}"},
        probe=server.wait_ready,
        exited=server.exited,
        lone_stop=server.lone_stop,
    )


def _bookie_part(
    index: int,
    ports: Ports,
    zookeeper: str,
    directory: Directory,
    environ: Mapping[str, str],
    extra: Mapping[str, str],
) -> Part:
    name = f"bookie-{index + 1}"
    settings = {
        "directories": [str(directory.part(name))],
        "host": HOST,
        "port": ports.port,
        "http_port": ports.http_port,
        "zookeeper": zookeeper,
        "exit_with_parent": True,
    }
    facts = {
        "address": f"{HOST}:{ports.port}",
        "http_url": f"http://{HOST}:{ports.http_port}",
    }
    return _python_part(
        name, "bookie", "daybook.bookie.server", settings, facts, directory, {**environ, **extra}
    )


def _broker_part(
    index: int,
    ports: Ports,
    zookeeper: str,
    directory: Directory,
    environ: Mapping[str, str],
    extra: Mapping[str, str],
) -> Part:
    name = f"broker-{index + 1}"
    settings = {
        "name": name,
        "host": HOST,
        "port": ports.port,
        "http_port": ports.http_port,
        "zookeeper": zookeeper,
        "exit_with_parent": True,
    }
    facts = {
        "address": f"{HOST}:{ports.port}",
        "service_url": f"pulsar://{HOST}:{ports.port}",
        "admin_url": f"http://{HOST}:{ports.http_port}",
    }
    return _python_part(
        name, "broker", "daybook.broker", settings, facts, directory, {**environ, **extra}
    )


def _python_part(
    name: str,
    kind: str,
    module: str,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    directory: Directory,
    environ: Mapping[str, str],
) -> Part:
    config = directory.write_config(name, settings)
    # -P keeps the current directory out of the path: a folder `broker` there is another one.
    command: Sequence[str] = [sys.executable, "-P", "-m", module, "--config", str(config)]
    # Each child applies the remaining variables over its settings file, and refuses unknown names.
    return Part(
        name=name,
        kind=kind,
        command=lambda: command,
        log=directory.log(name),
        environ={k: v for k, v in environ.items() if not is_for_one_part(k)},
        facts=facts,
    )
