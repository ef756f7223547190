"""Settings: an unknown one, or one of the wrong kind, is an error; none is ignored."""

from pathlib import Path

import pytest

from daybook.broker.config import BrokerConfig, QuorumsConfig, load, parse, with_advertised_host
from daybook.wire.settings import ConfigError


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('name = "one"\nport = 7000\n[quorums]\nensemble = 3\nwrite = 3\nack = 2\n')
    environment = {
        "DAYBOOK_BROKER_PORT": "0",
        "DAYBOOK_BROKER_NAME": "2",
        "DAYBOOK_BROKER_QUORUMS__ACK": "3",
        "DAYBOOK_BROKER_EXIT_WITH_PARENT": "true",
        "DAYBOOK_BOOKIE_PORT": "9",
    }
    config = load(path, environment)
    assert (config.name, config.port, config.exit_with_parent) == ("2", 0, True)
    assert config.quorums == QuorumsConfig(ensemble=3, write=3, ack=3)


def test_without_settings_there_are_defaults() -> None:
    assert load(None, {}) == BrokerConfig()
    assert BrokerConfig().default_retention_minutes == 7 * 24 * 60


@pytest.mark.parametrize(
    "settings",
    [
        {"prot": 1},
        {"port": "6650"},
        {"port": 70000},
        {"quorums": {"ensemble": 3, "write": 3}},
        {"quorums": {"ensemble": 2, "write": 3, "ack": 2}},
        {"quorums": {"ensemble": 6, "write": 3, "ack": 2}},
        {"quorums": "three"},
        {"session_timeout_s": 0},
        {"default_retention_minutes": 0},
        {"roll_entries": 0},
        {"roll_entries": 1 << 26},
        {"zookeeper": ""},
        {"port": -2},
        {"port": -1},
        {"tls_port": 0},
        {"https_port": 0, "tls_certificate": "a.pem"},
        {"tls_certificate": "a.pem"},
        {"tls_client_certificates": "required"},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse(settings)


def test_unknown_names_in_the_environment_are_errors() -> None:
    with pytest.raises(ConfigError, match="tiemout"):
        load(None, {"DAYBOOK_BROKER_TIEMOUT": "1"})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_nobody_can_connect_to_is_not_advertised(host: str) -> None:
    config = parse({"host": host})
    assert with_advertised_host(config, lambda: "me.example").public_host == "me.example"
    with pytest.raises(ConfigError, match="set advertised_host to that name or address"):
        with_advertised_host(config, lambda: None)


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"host": "0.0.0.0", "advertised_host": "here"}, "here"),
        ({"host": "10.0.0.1"}, "10.0.0.1"),
        ({}, "127.0.0.1"),
    ],
)
def test_a_host_that_is_given_is_advertised(settings: dict[str, str], host: str) -> None:
    assert with_advertised_host(parse(settings), lambda: "other").public_host == host


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"port": 6650}, "me:6650"),
        ({"port": 6650, "tls_port": 6651}, "me:6650"),
        ({"port": -1, "tls_port": 6651}, "me:6651"),
        ({"port": -1, "tls_port": 6651, "name": "broker-1"}, "broker-1"),
    ],
)
def test_a_broker_is_shown_by_its_name_or_by_a_port_that_it_has(
    settings: dict[str, object], name: str
) -> None:
    files = {"tls_certificate": "c.pem", "tls_key": "k.pem"} if "tls_port" in settings else {}
    assert parse({"advertised_host": "me", **settings, **files}).shown_name == name
