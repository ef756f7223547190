"""The plan of a standalone cluster: ports, settings and parts."""

import os
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import click
import msgspec
import pytest

import daybook.bookie.server.config
import daybook.broker.config
from daybook.clients.cli.bookie import bookie as bookie_command
from daybook.clients.cli.broker import broker as broker_command
from daybook.clients.cli.directory import Directory, Ports, Saved, open_directory
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.exposure import Exposure
from daybook.clients.cli.plan import ClusterOptions, Plan, make_plan, moved_brokers
from daybook.clients.cli.ports import ANY_PORT_MIN, PortChooser
from daybook.clients.cli.zookeeper import Java, Server, ServerTls, _zoo_cfg
from daybook.wire.clock import SystemClock

# An external ZooKeeper, so that no test here needs Java.
EPHEMERAL = ClusterOptions(
    bookies=None,
    brokers=2,
    port=None,
    admin_port=None,
    zookeeper_port=None,
    zookeeper="zk:2181",
    zookeeper_home=None,
    ephemeral=True,
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(tmp_path) as opened:
        yield opened


def plan(options: ClusterOptions, directory: Directory) -> Plan:
    with PortChooser(Random()) as ports:
        made = make_plan(options, directory, os.environ, ports)
    directory.save(made.saved)
    return made


def test_all_ports_are_different_and_free(directory: Directory) -> None:
    made = plan(EPHEMERAL, directory)
    pairs = [*made.saved.bookies, *made.saved.brokers]
    ports = [port for pair in pairs for port in (pair.port, pair.http_port)]
    assert len(set(ports)) == len(ports) == 10
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_parts_are_named_and_told_where_everything_is(directory: Directory) -> None:
    made = plan(EPHEMERAL, directory)
    names = ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"]
    assert [part.name for part in made.parts] == names
    one, two = made.saved.brokers
    assert made.service_url == f"pulsar://127.0.0.1:{one.port},127.0.0.1:{two.port}"
    assert made.admin_url == f"http://127.0.0.1:{one.http_port},127.0.0.1:{two.http_port}"
    for part in made.parts:
        settings = tomllib.loads((directory.path / "conf" / f"{part.name}.toml").read_text())
        assert settings["zookeeper"] == "zk:2181"
        assert settings["exit_with_parent"] is True
        assert part.facts["address"] == f"127.0.0.1:{settings['port']}"


def test_the_settings_are_those_that_the_parts_know(directory: Directory) -> None:
    plan(EPHEMERAL, directory)
    for index in (1, 2):
        settings = daybook.broker.config.load(directory.path / "conf" / f"broker-{index}.toml", {})
        assert settings.exit_with_parent
        path = directory.path / "conf" / f"bookie-{index}.toml"
        assert daybook.bookie.server.config.load(path, {}).directories == (
            str(directory.path / f"bookie-{index}"),
        )


@pytest.mark.parametrize(
    ("command", "config"),
    [
        (bookie_command, daybook.bookie.server.config.BookieConfig),
        (broker_command, daybook.broker.config.BrokerConfig),
    ],
)
def test_every_option_of_a_part_is_a_setting(
    command: click.Command, config: type[msgspec.Struct]
) -> None:
    options = {str(parameter.name) for parameter in command.params} - {"config", "metadata"}
    assert options <= {field.name for field in msgspec.structs.fields(config)}


def test_the_next_start_has_the_same_ports_and_bookies(directory: Directory) -> None:
    first = plan(replace(EPHEMERAL, bookies=4), directory)
    assert plan(EPHEMERAL, directory).saved == first.saved


def test_more_parts_can_be_added(directory: Directory) -> None:
    first = plan(EPHEMERAL, directory).saved
    second = plan(replace(EPHEMERAL, bookies=5, brokers=3), directory).saved
    assert second.bookies[:3] == first.bookies
    assert second.brokers[:2] == first.brokers
    assert (len(second.bookies), len(second.brokers)) == (5, 3)


def test_bookies_with_data_are_not_left_out(directory: Directory) -> None:
    plan(EPHEMERAL, directory)
    assert len(plan(replace(EPHEMERAL, bookies=2), directory).saved.bookies) == 2  # no data yet
    for name in ("bookie-1", "bookie-2"):
        directory.part(name).mkdir()
    with pytest.raises(UserError, match="start with --bookies 2 or more"):
        plan(replace(EPHEMERAL, bookies=1), directory)


def test_a_cluster_stays_with_its_zookeeper(directory: Directory) -> None:
    plan(EPHEMERAL, directory)
    assert plan(replace(EPHEMERAL, zookeeper=None), directory).zookeeper == "zk:2181"
    with pytest.raises(UserError, match="is registered in zk:2181"):
        plan(replace(EPHEMERAL, zookeeper="other:2181"), directory)


def test_the_port_that_was_asked_for_or_none(directory: Directory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} for the service is taken: .*--port"):
            plan(replace(EPHEMERAL, port=port), directory)
        with pytest.raises(UserError, match=f"Port {port} for the admin .*--admin-port"):
            plan(replace(EPHEMERAL, admin_port=port), directory)
    assert plan(replace(EPHEMERAL, port=port), directory).saved.brokers[0].port == port


def test_a_broker_that_cannot_have_the_next_port_is_told(directory: Directory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = replace(EPHEMERAL, port=port - 1)
        saved = Saved("zk:2181", 0, (), (Ports(port - 1, 1), Ports(24954, 2)))
        said = [f"the port {port} for broker-2 is taken: it listens on 24954"]
        assert moved_brokers(options, saved) == said
        saved = replace(saved, brokers=(Ports(port - 1, 1), Ports(port, 2)))
        assert moved_brokers(options, saved) == []
        both = replace(options, admin_port=1)
        assert moved_brokers(both, saved) == []
        both = replace(options, admin_port=7)
        assert moved_brokers(both, saved) == [
            "the admin port 8 for broker-2 is taken: it listens on 2"
        ]
        assert moved_brokers(replace(options, port=0), saved) == []
        assert moved_brokers(replace(options, port=None), saved) == []


def test_with_port_0_all_ports_are_free_ones(directory: Directory) -> None:
    """The usual ports may be free now, and be those of a cluster that is down for a moment."""
    first = plan(replace(EPHEMERAL, ephemeral=False, port=0), directory).saved
    pairs = [*first.bookies, *first.brokers]
    ports = [port for pair in pairs for port in (pair.port, pair.http_port)]
    assert len(set(ports)) == 10
    assert min(ports) >= ANY_PORT_MIN
    # Bookies are known by their ports, so those of the first start stay.
    second = plan(replace(EPHEMERAL, ephemeral=False, port=0), directory).saved
    assert second.bookies == first.bookies
    assert [each.http_port for each in second.brokers] == [each.http_port for each in first.brokers]


def test_ports_that_nobody_types_give_way(directory: Directory) -> None:
    first = plan(EPHEMERAL, directory).saved
    with socket.create_server(("127.0.0.1", first.bookies[0].http_port)):
        second = plan(EPHEMERAL, directory).saved
    assert second.bookies[0].port == first.bookies[0].port
    assert second.bookies[0].http_port != first.bookies[0].http_port
    assert second.bookies[1:] == first.bookies[1:]
    assert isinstance(second.bookies[0], Ports)


def test_settings_of_all_bookies_reach_them_and_those_of_one_are_told_to_be_ignored(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBOOK_BOOKIE_COOKIE_REPAIR", "auto")
    monkeypatch.setenv("DAYBOOK_BOOKIE_PORT", "1")
    monkeypatch.setenv("DAYBOOK_BROKER_LEDGERS_ROOT", "/elsewhere")
    made = plan(EPHEMERAL, directory)
    assert made.ignored == ("DAYBOOK_BOOKIE_PORT", "DAYBOOK_BROKER_LEDGERS_ROOT")
    for part in made.parts:
        assert part.environ["DAYBOOK_BOOKIE_COOKIE_REPAIR"] == "auto"
        assert not {*made.ignored} & {*part.environ}


@pytest.mark.parametrize(("bookies", "needed"), [(1, 1), (2, 2), (3, 2), (5, 2)])
def test_so_many_bookies_have_an_entry_before_it_is_acknowledged(
    directory: Directory, bookies: int, needed: int
) -> None:
    assert plan(replace(EPHEMERAL, bookies=bookies), directory).ack_quorum == needed


def test_settings_of_the_command_line_reach_all_parts_of_their_kind(directory: Directory) -> None:
    options = replace(
        EPHEMERAL, settings=("broker.roll_entries=7", "broker.quorums.ack=1", "bookie.rack=r1")
    )
    made = plan(options, directory)
    assert made.ack_quorum == 1
    for part in made.parts:
        config = directory.path / "conf" / f"{part.name}.toml"
        if part.kind == "broker":
            extra = {"DAYBOOK_BROKER_QUORUMS": "{ensemble=3, write=3, ack=2}"}
            assert daybook.broker.config.load(config, {**extra, **part.environ}).roll_entries == 7
        else:
            assert daybook.bookie.server.config.load(config, part.environ).rack == "r1"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("roll_entries=7", "write broker.NAME=VALUE"),
        ("broker.roll_entries", "write broker.NAME=VALUE"),
        ("zookeeper.tick=1", "write broker.NAME=VALUE"),
        ("bookie.port=7", "each part of a cluster has its own"),
    ],
)
def test_what_is_no_setting_of_a_kind_is_refused(
    directory: Directory, setting: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        plan(replace(EPHEMERAL, settings=(setting,)), directory)


SECURE = replace(
    EPHEMERAL,
    exposure=Exposure("0.0.0.0", "m1.example", "secure", ("further",), storage=True),
)
ONLY_BROKERS = replace(SECURE, exposure=replace(SECURE.exposure, storage=False))


def test_bookies_of_a_secure_cluster_ask_everybody_for_a_certificate(directory: Directory) -> None:
    made = plan(SECURE, directory)
    # A cluster does not decide what the ZooKeeper of others asks.
    assert made.saved.locked == ("brokers", "bookies")
    security = directory.part("security")
    for part, ports in zip(made.parts[:3], made.saved.bookies, strict=True):
        config = daybook.bookie.server.config.load(
            directory.path / "conf" / f"{part.name}.toml", part.environ
        )
        assert (config.tls, config.tls_client_certificates) == ("required", "required")
        assert (config.authentication, config.users_file) == ("require", "")
        assert config.allowed_certificates == ("daybook", "admin")
        assert config.allowed_certificate_roles == ()
        assert config.tls_trusted == str(security / "authority.pem")
        assert (config.port, config.http_port, config.https_port) == (
            ports.port,
            -1,
            ports.http_port,
        )
        assert config.bookie_tls
        assert config.zookeeper_access.tls is None
        assert part.facts["http_url"] == f"https://127.0.0.1:{ports.http_port}"
    for part in made.parts[3:]:
        broker = daybook.broker.config.load(
            directory.path / "conf" / f"{part.name}.toml", part.environ
        )
        assert broker.bookie_access.tls
        assert broker.bookie_access.certificate == str(security / "server.pem")


def test_zookeeper_of_a_secure_cluster_speaks_tls_alone(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(place: Path, port: int, *, tls: ServerTls | None, **_: object) -> Server:
        return Server(Java("java", "17"), (), place, port, place, tls)

    monkeypatch.setattr("daybook.clients.cli.plan.find_server", found)
    options = replace(SECURE, zookeeper=None)
    made = plan(options, directory)
    assert made.saved.locked == ("brokers", "bookies", "zookeeper")
    assert made.server is not None
    assert made.server.tls is not None
    assert made.server.tls.client_certificates == "required"
    assert not directory.part("zookeeper").exists(), "its certificate is not made yet"
    assert made.security is not None
    made.security.prepare(SystemClock(), lambda _: None)
    made.server.prepare()
    text = (directory.part("zookeeper") / "zoo.cfg").read_text()
    assert "ssl.clientAuth=need" in text
    assert f"secureClientPort={made.saved.zookeeper_port}" in text
    assert "\nclientPort=" not in text
    for part in made.parts[1:]:
        path = directory.path / "conf" / f"{part.name}.toml"
        access = (
            daybook.broker.config.load(path, part.environ).zookeeper_access
            if part.kind == "broker"
            else daybook.bookie.server.config.load(path, part.environ).zookeeper_access
        )
        assert access.tls is not None
        assert access.tls.certificate == directory.part("security") / "server.pem"
        assert access.verify_host


def test_a_cluster_whose_brokers_alone_are_locked_goes_on_as_before(directory: Directory) -> None:
    made = plan(ONLY_BROKERS, directory)
    assert made.saved.locked == ("brokers",)
    for part in made.parts[:3]:
        config = daybook.bookie.server.config.load(
            directory.path / "conf" / f"{part.name}.toml", part.environ
        )
        assert (config.tls, config.authentication, config.https_port) == ("off", "off", -1)
        assert not config.bookie_access.tls
        assert part.facts["http_url"].startswith("http://")
    for part in made.parts[3:]:
        broker = daybook.broker.config.load(
            directory.path / "conf" / f"{part.name}.toml", part.environ
        )
        assert not broker.bookie_access.tls
    # Its own security of bookies may still be set.
    replaced = replace(ONLY_BROKERS, settings=("broker.bookie_user=me",))
    assert plan(replaced, directory).parts[-1].environ["DAYBOOK_BROKER_BOOKIE_USER"] == "me"
    with pytest.raises(UserError, match="a secure cluster decides about bookie_user itself"):
        plan(replace(SECURE, settings=("broker.bookie_user=me",)), directory)
    # A cluster does not decide about the identity for the ZooKeeper of others.
    others = replace(SECURE, settings=("bookie.zookeeper_user=me",))
    assert plan(others, directory).parts[0].environ["DAYBOOK_BOOKIE_ZOOKEEPER_USER"] == "me"


def test_brokers_of_a_secure_cluster_have_no_port_without_tls_and_ask_everybody(
    directory: Directory,
) -> None:
    made = plan(SECURE, directory)
    security = made.security
    assert security is not None
    assert security.directory == directory.part("security")
    assert {*security.names} >= {"localhost", "m1.example", "further"}
    assert "0.0.0.0" not in security.names
    one, two = made.saved.brokers
    assert made.service_url == f"pulsar+ssl://m1.example:{one.port},m1.example:{two.port}"
    assert made.admin_url == f"https://m1.example:{one.http_port},m1.example:{two.http_port}"
    for part, ports in zip(made.parts[-2:], made.saved.brokers, strict=True):
        config = daybook.broker.config.load(
            directory.path / "conf" / f"{part.name}.toml", part.environ
        )
        assert (config.port, config.http_port) == (-1, -1)
        assert (config.tls_port, config.https_port) == (ports.port, ports.http_port)
        assert config.require_tls
        assert config.authentication == ("token",)
        assert config.authorization
        assert config.anonymous_role == ""
        assert config.authenticate_metrics
        assert config.audit_file == str(directory.path / "logs" / f"{part.name}.audit.jsonl")
        assert (config.host, config.public_host) == ("0.0.0.0", "m1.example")
        assert part.facts["service_url"] == f"pulsar+ssl://m1.example:{ports.port}"
        assert part.facts["admin_url"] == f"https://m1.example:{ports.http_port}"


def test_bookies_and_zookeeper_listen_on_loopback_whatever_brokers_do(
    directory: Directory,
) -> None:
    made = plan(SECURE, directory)
    for part in made.parts[:3]:
        config = daybook.bookie.server.config.load(
            directory.path / "conf" / f"{part.name}.toml", part.environ
        )
        assert (config.host, config.public_host) == ("127.0.0.1", "127.0.0.1")
    assert "clientPortAddress=127.0.0.1" in _zoo_cfg(Path("data"), 2181)


def test_what_a_secure_cluster_decides_itself_cannot_be_weakened(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = {
        "AUTHENTICATION": "[]",
        "AUTHORIZATION": "false",
        "ANONYMOUS_ROLE": "admin",
        "TLS_CERTIFICATE": "/elsewhere",
        "REQUIRE_TLS": "false",
        "TOKEN_SECRET_KEY": "data:,x",
        "SUPER_USERS": '["everybody"]',
    }
    for name, value in weak.items():
        monkeypatch.setenv(f"DAYBOOK_BROKER_{name}", value)
        with pytest.raises(UserError, match="a secure cluster decides about"):
            plan(replace(SECURE, settings=(f"broker.{name.lower()}={value}",)), directory)
    made = plan(SECURE, directory)
    assert {*made.ignored} >= {f"DAYBOOK_BROKER_{name}" for name in weak}
    assert not [name for part in made.parts for name in part.environ if name in made.ignored]
    # A cluster that is not secure may be given its own security.
    open_ = plan(EPHEMERAL, directory)
    assert open_.ignored == ()
    assert open_.parts[-1].environ["DAYBOOK_BROKER_AUTHORIZATION"] == "false"


def test_the_next_start_finds_the_choice_and_the_names(directory: Directory) -> None:
    plan(SECURE, directory)
    found = directory.load()
    assert found is not None
    assert (found.security, found.host, found.names) == ("secure", "m1.example", ("further",))


def test_a_port_of_a_broker_is_free_on_all_addresses_on_which_it_listens(
    directory: Directory,
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        assert plan(replace(EPHEMERAL, port=port), directory).saved.brokers[0].port == port
        with pytest.raises(UserError, match=f"Port {port} for the service is taken"):
            plan(replace(SECURE, port=port), directory)
