"""Settings: a file, overridden by the environment; no unknown setting is ignored."""

from pathlib import Path

import pytest

from daybook.bookie.server.config import BookieConfig, load, parse
from daybook.bookie.storage.limits import StoreLimits
from daybook.wire.settings import ConfigError


def test_a_file_and_the_environment_over_it(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text('directories = ["/d0", "/d1"]\nport = 4000\nbookie_id = "b1"\n')
    environment = {
        "DAYBOOK_BOOKIE_PORT": "0",
        "DAYBOOK_BOOKIE_BOOKIE_ID": "17",
        "DAYBOOK_BOOKIE_EXIT_WITH_PARENT": "true",
        "DAYBOOK_BROKER_PORT": "1",
        "HOME": "/",
    }
    config = load(file, environment)
    assert config == BookieConfig(
        directories=("/d0", "/d1"), port=0, bookie_id="17", exit_with_parent=True
    )
    directories = {"DAYBOOK_BOOKIE_DIRECTORIES": '["/x"]'}
    assert load(None, directories).directories == ("/x",)


TLS: dict[str, object] = {
    "directories": ["/d"],
    "tls": "optional",
    "tls_certificate": "c",
    "tls_key": "k",
}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "directories"),
        ({"directories": []}, "directories"),
        ({"directories": ["/d"], "prot": 1}, "prot"),
        ({"directories": ["/d"], "port": 70000}, "port"),
        ({"directories": ["/d"], "port": "1"}, "port"),
        ({"directories": ["/d", "/d"]}, "twice"),
        ({"directories": ["/d"], "sync": "never"}, "sync"),
        ({"directories": ["/d"], "bookie_id": "a b"}, "bookie_id"),
        ({"directories": ["/d"], "bookie_id": "readonly"}, "readonly"),
        ({"directories": ["/d"], "zookeeper": ""}, "zookeeper"),
        ({"directories": ["/d"], "arena_bytes_max": 1 << 20}, "arena_bytes_max"),
        ({"directories": ["/d"], "tls": "optional"}, "need tls_certificate"),
        ({"directories": ["/d"], "https_port": 0}, "need tls_certificate"),
        ({"directories": ["/d"], "tls_key": "k"}, "belong together"),
        ({**TLS, "tls_client_certificates": "optional"}, "authorities"),
        ({**TLS, "tls": "required"}, "needs bookie_tls"),
        (
            {**TLS, "tls_client_certificates": "required", "tls_trusted": "t"},
            "needs bookie_tls",
        ),
        ({"directories": ["/d"], "authentication": "permit"}, "needs users_file"),
        ({"directories": ["/d"], "users_file": "u"}, "set both, or neither"),
        ({**TLS, "allowed_certificates": ["a"]}, "nobody shows a certificate"),
        ({"directories": ["/d"], "bookie_user": "u"}, "belong together"),
        (
            {"directories": ["/d"], "authentication": "require", "users_file": "u"},
            "needs bookie_user",
        ),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(settings)


def test_an_unknown_variable_of_ours_is_an_error() -> None:
    with pytest.raises(ConfigError, match="prot"):
        load(None, {"DAYBOOK_BOOKIE_PROT": "1", "DAYBOOK_BOOKIE_DIRECTORIES": '["/d"]'})


def test_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        load(tmp_path / "missing", {})
    (tmp_path / "broken").write_text("port = = 1")
    with pytest.raises(ConfigError, match="broken"):
        load(tmp_path / "broken", {})


def test_directories_share_the_memory_for_readers() -> None:
    def shares(size: int, *directories: str) -> int:
        config = parse({"directories": directories, "read_cache_bytes": size})
        return config.store_limits.log.reading.windows_bytes_max

    assert shares(1 << 30, "/d0") == 1 << 30
    assert shares(1 << 30, "/d0", "/d1") == 1 << 29
    assert shares(1 << 20, "/d0", "/d1") == 16 << 20  # with less there could be no read-ahead
    assert parse({"directories": ["/d0"]}).store_limits.log == StoreLimits().log


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_nobody_can_connect_to_is_not_advertised(host: str) -> None:
    with pytest.raises(ConfigError, match="set advertised_host to the name or address"):
        parse({"directories": ["/d0"], "host": host})
    assert (
        parse({"directories": ["/d0"], "host": host, "advertised_host": "here"}).public_host
        == "here"
    )


def test_security_that_fits_together() -> None:
    parse({**TLS, "authentication": "permit", "users_file": "u"})
    parse({**TLS, "tls": "required", "bookie_tls": True})
    parse(
        {
            **TLS,
            "bookie_tls": True,
            "tls_trusted": "t",
            "tls_client_certificates": "required",
            "authentication": "require",
            "allowed_certificates": ["a"],
        }
    )
