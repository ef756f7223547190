"""Plan a standalone cluster: its parts, ports and settings.  Nothing is started here."""

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daybook.clients.cli.directory import Directory, Locked, Ports, Saved, in_url
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.exposure import Exposure
from daybook.clients.cli.ports import HOST, PortChooser
from daybook.clients.cli.secure import (
    FOLDER,
    OWN_SETTINGS,
    OWN_STORAGE_SETTINGS,
    OWN_ZOOKEEPER_SETTINGS,
    Security,
    names_for,
)
from daybook.clients.cli.supervisor import Part
from daybook.clients.cli.zookeeper import Server, find_server
from daybook.wire.settings import ANY_ADDRESS

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
    exposure: Exposure = field(default_factory=Exposure)

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
    security: Security | None  # None: not a secure cluster.  Its files are not made yet.
    server: Server | None  # the ZooKeeper of the cluster.  Its files are not made yet, either.


def make_plan(
    options: ClusterOptions, directory: Directory, environ: Mapping[str, str], ports: PortChooser
) -> Plan:
    """Plan the cluster, and write the settings of its parts.

    Raise `UserError` if the options cannot be satisfied.
    """
    exposure = options.exposure
    before = directory.load()
    external = _external_zookeeper(options, before, directory)
    locked = _locked(exposure, external)
    own = _own_settings(locked)
    extra = _parse_settings(options.settings, own)
    count = _count_bookies(options, before, directory)
    saved = Saved(
        zookeeper=external,
        zookeeper_port=0 if external else _zookeeper_port(options, before, ports),
        brokers=tuple(_broker_ports(i, options, before, ports) for i in range(options.brokers)),
        bookies=tuple(_bookie_ports(i, options, before, ports) for i in range(count)),
        security=exposure.security,
        host=exposure.advertised_host,
        names=exposure.names,
        locked=locked,
    )
    security = _security(exposure, directory)
    ignored = tuple(sorted(name for name in environ if is_for_one_part(name, own)))
    told = {name: value for name, value in environ.items() if name not in ignored}
    zookeeper = external or f"{HOST}:{saved.zookeeper_port}"
    parts: list[Part] = []
    server: Server | None = None
    if not external:
        server = find_server(
            directory.part("zookeeper"),
            saved.zookeeper_port,
            zookeeper_home=options.zookeeper_home,
            environ=environ,
            tls=None if security is None else security.zookeeper_server,
        )
        parts.append(_zookeeper_part(server, directory, environ))
    common = _Common(zookeeper, directory, security, "zookeeper" in locked)
    for index, its_ports in enumerate(saved.bookies):
        parts.append(_bookie_part(index, its_ports, common, {**told, **extra["bookie"]}))
    for index, its_ports in enumerate(saved.brokers):
        variables = {**told, **extra["broker"]}
        parts.append(_broker_part(index, its_ports, common, exposure, variables))
    return Plan(
        parts=tuple(parts),
        zookeeper=zookeeper,
        service_url=saved.service_url,
        admin_url=saved.admin_url,
        saved=saved,
        ack_quorum=_ack_quorum(count, {**environ, **extra["broker"]}),
        ignored=ignored,
        security=security,
        server=server,
    )


@dataclass(frozen=True, slots=True)
class _Common:
    """The facts that all bookies and brokers are told."""

    zookeeper: str
    directory: Directory
    security: Security | None
    zookeeper_tls: bool


def _locked(exposure: Exposure, external: str) -> Locked:
    if not exposure.is_secure:
        return ()
    if not exposure.storage:
        return ("brokers",)
    return ("brokers", "bookies") if external else ("brokers", "bookies", "zookeeper")


def _own_settings(locked: Locked) -> Set[str]:
    """Return the settings that the cluster decides about itself."""
    own: Set[str] = _OWN_SETTINGS
    if "brokers" in locked:
        own |= OWN_SETTINGS
    if "bookies" in locked:
        own |= OWN_STORAGE_SETTINGS
    if "zookeeper" in locked:
        own |= OWN_ZOOKEEPER_SETTINGS
    return own


def _security(exposure: Exposure, directory: Directory) -> Security | None:
    if not exposure.is_secure:
        return None
    hosts = [host for host in (exposure.host, exposure.advertised_host) if host not in ANY_ADDRESS]
    names = names_for(hosts, exposure.names)
    return Security(directory.part(FOLDER), names, exposure.storage)


def _parse_settings(settings: Sequence[str], own: Set[str]) -> dict[str, dict[str, str]]:
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
                " own." + (" Say with --host where brokers listen." if "host" in name else "")
            )
        if name in own:
            raise UserError(f"--set {setting}: a secure cluster decides about {name} itself.")
        extra[kind][f"DAYBOOK_{kind.upper()}_{name.upper().replace('.', '__')}"] = value
    return extra


def _ack_quorum(bookies: int, environ: Mapping[str, str]) -> int:
    """Return the ack quorum that brokers use: a setting, else 2, or 1 if there is one bookie."""
    told = environ.get("DAYBOOK_BROKER_QUORUMS__ACK", "")
    return int(told) if told.isdecimal() else min(bookies, _ACK_QUORUM)


def is_for_one_part(name: str, own: Set[str] = _OWN_SETTINGS) -> bool:
    """Return True for the variable of a setting that the cluster decides about itself.

    It differs between parts of one kind, or belongs to a secure cluster.
    """
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix).lower().partition("__")[0] in own
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
    host = options.exposure.host
    if index == 0:
        port = usual.port if options.port is None else options.port
        http_port = usual.http_port if options.admin_port is None else options.admin_port
        remedy = "choose another with {} (0: any)"
        return Ports(
            ports.exactly(port, "the service", remedy.format("--port"), host),
            ports.exactly(http_port, "the admin interface", remedy.format("--admin-port"), host),
        )
    return Ports(
        ports.preferably(_next_port(options.port, usual.port, index), host),
        ports.preferably(_next_port(options.admin_port, usual.http_port, index), host),
    )


def moved_brokers(options: ClusterOptions, saved: Saved) -> list[str]:
    """Return which brokers do not listen on the port next to a typed one, because it is taken."""
    found: list[str] = []
    for index, broker in enumerate(saved.brokers[1:], 1):
        for first, port, name in (
            (options.port, broker.port, "port"),
            (options.admin_port, broker.http_port, "admin port"),
        ):
            wanted = _next_port(first, 0, index)
            if wanted and port != wanted:
                found.append(
                    f"the {name} {wanted} for broker-{index + 1} is taken: it listens on {port}"
                )
    return found


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


def _bookie_part(index: int, ports: Ports, common: _Common, environ: Mapping[str, str]) -> Part:
    name = f"bookie-{index + 1}"
    settings = {
        "directories": [str(common.directory.part(name))],
        "host": HOST,
        "port": ports.port,
        "http_port": ports.http_port,
        "zookeeper": common.zookeeper,
        "exit_with_parent": True,
    }
    secure = common.security is not None and common.security.storage
    if common.security is not None:
        settings |= common.security.bookie_settings(ports.http_port)
    if common.zookeeper_tls:
        settings["zookeeper_tls"] = True
    facts = {
        "address": f"{HOST}:{ports.port}",
        "http_url": f"{'https' if secure else 'http'}://{HOST}:{ports.http_port}",
    }
    return _python_part(
        name, "bookie", "daybook.bookie.server", settings, facts, common.directory, environ
    )


def _broker_part(
    index: int, ports: Ports, common: _Common, exposure: Exposure, environ: Mapping[str, str]
) -> Part:
    name = f"broker-{index + 1}"
    settings = {
        "name": name,
        "host": exposure.host,
        "advertised_host": exposure.advertised_host,
        "port": ports.port,
        "http_port": ports.http_port,
        "zookeeper": common.zookeeper,
        "exit_with_parent": True,
    }
    if common.security is not None:
        audit = common.directory.log(name).with_suffix(".audit.jsonl")
        settings |= common.security.broker_settings(ports.port, ports.http_port, audit)
    if common.zookeeper_tls:
        settings["zookeeper_tls"] = True
    host = in_url(exposure.advertised_host)
    secure = common.security is not None
    facts = {
        "address": f"{host}:{ports.port}",
        "service_url": f"{'pulsar+ssl' if secure else 'pulsar'}://{host}:{ports.port}",
        "admin_url": f"{'https' if secure else 'http'}://{host}:{ports.http_port}",
    }
    return _python_part(
        name, "broker", "daybook.broker", settings, facts, common.directory, environ
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
    # Each child applies its variables over its settings file, and refuses unknown names.
    return Part(
        name=name,
        kind=kind,
        command=lambda: command,
        log=directory.log(name),
        environ=environ,
        facts=facts,
    )
