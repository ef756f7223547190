"""The keys, certificates and tokens of a secure standalone cluster."""

import shutil
import ssl
import stat
import subprocess
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from daybook.broker.security import revoked
from daybook.broker.security.keys import private_key, public_key
from daybook.broker.security.tokens import ClaimRules, Tokens, create
from daybook.clients.cli import key_files
from daybook.clients.cli.authority import (
    Authority,
    common_name_of,
    kind_of,
    names_of,
    read_certificate,
    time_of,
)
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.secure import Security, names_for
from daybook.clients.cli.tokens import new_key_pair
from daybook.wire.tls_files import ReloadedContext, TlsFiles, server_context
from tests.harness.clocks import EPOCH_MS, FixedClock, VirtualClock
from tests.wire.test_tls_files import Lines

DAY_MS = 24 * 3600 * 1000
CERTIFICATES = {"server.pem", "zookeeper.pem", "admin.pem"}
SECRETS = {"authority.key", "token-private.pem", "admin.token", "broker.token", *CERTIFICATES}
PUBLIC = {"authority.pem", "token-public.pem", "revoked-tokens"}


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(EPOCH_MS)


@pytest.fixture
def security(tmp_path: Path) -> Security:
    names = names_for(("10.0.0.1",), ("more.example",))
    return Security(tmp_path / "security", names, storage=True)


def prepared(security: Security, clock: FixedClock) -> list[str]:
    """Prepare the folder, and return what was reported."""
    said: list[str] = []
    security.prepare(clock, said.append)
    return said


def contents(security: Security) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in security.directory.iterdir()}


def changed(security: Security, before: dict[str, bytes]) -> set[str]:
    after = contents(security)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_only_the_owner_can_read_the_secrets(security: Security, clock: FixedClock) -> None:
    assert prepared(security, clock) == []
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in security.directory.iterdir()}
    assert modes == {**dict.fromkeys(SECRETS, 0o600), **dict.fromkeys(PUBLIC, 0o644)}
    assert stat.S_IMODE(security.directory.stat().st_mode) == 0o700


def test_the_certificate_is_made_out_to_all_names_of_the_brokers(
    security: Security, clock: FixedClock
) -> None:
    prepared(security, clock)
    found = read_certificate(security.server)
    assert {*names_of(found)} >= {"localhost", "127.0.0.1", "::1", "10.0.0.1", "more.example"}
    assert {*names_of(found)} == {*security.names}
    found.verify_directly_issued_by(read_certificate(security.trusted))


def test_tokens_prove_the_roles_of_the_super_users(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    settings = security.broker_settings(1, 2, Path("audit"))
    known = Tokens([public_key(settings["token_public_key"])], ClaimRules())
    for file, role in ((security.admin_token, "admin"), (settings["broker_token_file"], "broker")):
        found = known.verify(Path(file).read_text().strip(), EPOCH_MS / 1000)
        assert (found.role, found.expires_s) == (role, None)
        assert role in settings["super_users"]


def test_the_list_of_revoked_tokens_is_made_and_kept(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    settings = security.broker_settings(1, 2, Path("audit"))
    assert settings["revoked_tokens_file"] == str(security.revoked_tokens)
    assert revoked.parse(security.revoked_tokens.read_bytes()) == revoked.Revoked()
    security.revoked_tokens.write_text("id 7\n")
    assert prepared(security, clock) == []
    assert security.revoked_tokens.read_text() == "id 7\n"
    security.revoked_tokens.unlink()
    (told,) = prepared(security, clock)
    assert "revokes no token" in told


def test_a_second_pair_of_keys_may_be_added(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    before = contents(security)
    _, public = new_key_pair("ES256")
    file = security.directory / "token-public.pem"
    file.write_bytes(public + file.read_bytes())
    assert prepared(security, clock) == []
    assert changed(security, before) == {"token-public.pem"}


def test_the_next_start_changes_nothing(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    before = contents(security)
    clock.now += 59 * DAY_MS
    assert prepared(security, clock) == []
    assert changed(security, before) == set()


def test_a_start_renews_the_certificate_at_two_thirds_of_its_life(
    security: Security, clock: FixedClock
) -> None:
    prepared(security, clock)
    before = contents(security)
    clock.now += 60 * DAY_MS
    assert prepared(security, clock) == ["new certificates are in server.pem and admin.pem"]
    assert changed(security, before) == {"server.pem", "admin.pem"}
    found = read_certificate(security.server)
    assert found.not_valid_after_utc == time_of(clock) + timedelta(days=90)
    found.verify_directly_issued_by(read_certificate(security.trusted))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"rubbish"),
        lambda file: file.write_bytes(file.read_bytes().partition(b"-----BEGIN PRIVATE")[0]),
        lambda file: file.write_bytes(b""),
    ],
    ids=["away", "rubbish", "without its key", "empty"],
)
def test_a_damaged_certificate_is_made_anew(
    security: Security, clock: FixedClock, spoil: Callable[[Path], object]
) -> None:
    prepared(security, clock)
    spoil(security.server)
    assert len(prepared(security, clock)) == 1
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(security.server, security.server)


def test_a_certificate_without_a_name_or_of_another_authority_is_made_anew(
    security: Security, clock: FixedClock
) -> None:
    prepared(security, clock)
    wider = Security(security.directory, (*security.names, "new.example"), storage=True)
    assert len(prepared(wider, clock)) == 1
    assert "new.example" in names_of(read_certificate(security.server))
    assert prepared(security, clock) == [], "a name more does no harm"
    other = Authority.create(time_of(clock))
    issued = other.issue(security.names, timedelta(days=90), time_of(clock))
    key_files.replace(security.server, issued.certificate + issued.key)
    assert len(prepared(security, clock)) == 1


def test_lost_tokens_are_made_anew_and_tokens_of_other_keys_are_replaced(
    security: Security, clock: FixedClock
) -> None:
    prepared(security, clock)
    before = contents(security)
    (security.directory / "admin.token").unlink()
    (security.directory / "broker.token").write_text("rubbish")
    prepared(security, clock)
    assert changed(security, before) <= {"admin.token", "broker.token"}
    key = private_key(str(security.directory / "token-private.pem"))
    (security.directory / "admin.token").write_text(create(key, {"sub": "somebody"}, {}))
    prepared(security, clock)
    known = Tokens([public_key(str(security.directory / "token-public.pem"))], ClaimRules())
    token = security.admin_token.read_text().strip()
    assert known.verify(token, clock.now_ms() / 1000).role == "admin"


_KEYS = ("authority.key", "authority.pem", "token-private.pem", "token-public.pem")


@pytest.mark.parametrize("name", _KEYS)
def test_keys_that_are_away_are_never_made_anew(
    security: Security, clock: FixedClock, name: str
) -> None:
    prepared(security, clock)
    (security.directory / name).unlink()
    before = contents(security)
    with pytest.raises(UserError, match=rf"^{name} is away from .*put back what was there"):
        prepared(security, clock)
    assert changed(security, before) == set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("authority.pem", r"authority\.pem is damaged"),
        ("authority.key", r"authority\.key is damaged"),
        ("token-private.pem", "keys of tokens in .* cannot be used"),
        ("token-public.pem", "keys of tokens in .* cannot be used"),
    ],
)
def test_damaged_keys_are_named(
    security: Security, clock: FixedClock, name: str, said: str
) -> None:
    prepared(security, clock)
    (security.directory / name).write_bytes(b"rubbish")
    before = contents(security)
    with pytest.raises(UserError, match=said):
        prepared(security, clock)
    assert changed(security, before) == set()


def test_keys_of_tokens_that_do_not_belong_together_are_refused(
    security: Security, clock: FixedClock, tmp_path: Path
) -> None:
    prepared(security, clock)
    other = Security(tmp_path / "other" / "security", ())
    other.directory.parent.mkdir()
    prepared(other, clock)
    shutil.copy(other.directory / "token-public.pem", security.directory)
    with pytest.raises(UserError, match="they do not belong together"):
        prepared(security, clock)


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secrets_that_others_may_read_are_refused(
    security: Security, clock: FixedClock, name: str
) -> None:
    prepared(security, clock)
    (security.directory / name).chmod(0o640)
    with pytest.raises(UserError, match=rf"{name} \(mode 640\).*run `chmod 600 "):
        prepared(security, clock)


def test_a_folder_that_others_may_enter_is_refused(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    security.directory.chmod(0o755)
    with pytest.raises(UserError, match=r"\(mode 755\).*run `chmod 700 "):
        prepared(security, clock)


def test_a_clock_that_is_wrong_is_told(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    before = contents(security)
    clock.now -= 2 * DAY_MS
    with pytest.raises(UserError, match=r"The clock of this machine says 2023-11-12 .*set the"):
        prepared(security, clock)
    clock.now += 3700 * DAY_MS
    with pytest.raises(UserError, match=r"has expired at 2033-11-11 .*make it anew, or set the"):
        prepared(security, clock)
    assert changed(security, before) == set()


def test_an_authority_that_ends_soon_is_told_and_no_certificate_outlives_it(
    security: Security, clock: FixedClock
) -> None:
    prepared(security, clock)
    clock.now += 3600 * DAY_MS
    told, _ = prepared(security, clock)
    assert "expires at 2033-11-11: before that, remove the folder" in told
    end = read_certificate(security.trusted).not_valid_after_utc
    assert read_certificate(security.server).not_valid_after_utc == end


def test_a_start_that_was_killed_while_it_made_keys_leaves_no_half_of_them(
    security: Security, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def replace(file: Path, content: bytes, *, public: bool = False) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(file)
        key_files.replace(file, content, public=public)

    with monkeypatch.context() as patch:
        patch.setattr("daybook.clients.cli.secure.replace", replace)
        with pytest.raises(KeyboardInterrupt):
            prepared(security, clock)
    assert not security.directory.exists()
    prepared(security, clock)
    assert [file.name for file in security.directory.parent.iterdir()] == ["security"]


def test_a_renewal_that_was_killed_leaves_the_certificate_that_was_there(
    security: Security, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(security, clock)
    before = contents(security)
    clock.now += 61 * DAY_MS

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            security.renew(clock)
    assert (security.directory / "server.pem").read_bytes() == before["server.pem"]
    assert security.renew(clock)
    assert changed(security, before) == {"server.pem", "admin.pem"}


async def test_the_running_process_renews_it_and_brokers_take_it_without_a_restart(
    security: Security, autojump_clock: trio.testing.MockClock
) -> None:
    clock, lines = VirtualClock(), Lines()
    said: list[str] = []
    security.prepare(clock, said.append)
    files = TlsFiles(security.server, security.server, security.trusted)
    build = partial(server_context, client_certificates="off")
    contexts = ReloadedContext(files, build, clock=clock, log=lines.log)
    first = contexts.get()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(security.keep_renewed, clock, said.append)
        await trio.sleep(59 * 24 * 3600)
        assert contexts.get() is first
        assert said == []
        await trio.sleep(24 * 3600)
        assert said == ["new certificates are in server.pem and admin.pem; no restart is needed"]
        assert contexts.get() is not first
        assert [line.split(" ")[0] for line in lines.pop()] == ["info"]
        await trio.sleep(60 * 24 * 3600)
        assert len(said) == 2
        nursery.cancel_scope.cancel()


async def test_a_renewal_that_fails_is_told_once_and_tried_again(
    security: Security, autojump_clock: trio.testing.MockClock
) -> None:
    clock = VirtualClock()
    said: list[str] = []
    security.prepare(clock, said.append)
    key = security.directory / "authority.key"
    away = key.rename(security.directory.parent / "away")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(security.keep_renewed, clock, said.append)
        await trio.sleep(62 * 24 * 3600)
        (failure,) = said
        assert failure.startswith("a certificate cannot be renewed: ")
        assert "authority.key cannot be read: No such file" in failure
        away.rename(key)
        await trio.sleep(2 * 3600)
        assert said[1:] == [
            "new certificates are in server.pem and admin.pem; no restart is needed"
        ]
        nursery.cancel_scope.cancel()


def test_the_variables_name_files_and_hold_no_secret(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    security.write_environment({"SERVICE_URL": "pulsar+ssl://a:1", "ZOOKEEPER": "x 'y'"})
    text = security.environment.read_text()
    for name in SECRETS:
        lines = (security.directory / name).read_text().splitlines()
        assert not [line for line in lines if line in text]
    shown = subprocess.run(
        ["sh", "-c", f". {security.environment}; exec env -0"],
        capture_output=True,
        text=True,
        check=True,
    )
    environ = dict(each.split("=", 1) for each in shown.stdout.split("\0") if each)
    assert environ["DAYBOOK_SERVICE_URL"] == "pulsar+ssl://a:1"
    assert environ["DAYBOOK_ZOOKEEPER"] == "x 'y'"
    assert environ["DAYBOOK_TLS_TRUSTED"] == str(security.trusted)
    assert environ["DAYBOOK_TOKEN_FILE"] == str(security.admin_token)
    for name in ("DAYBOOK_TLS_CERTIFICATE", "DAYBOOK_TLS_KEY"):
        assert environ[name] == str(security.admin_certificate)
    assert environ["DAYBOOK_BOOKIES_TLS"] == environ["DAYBOOK_ZOOKEEPER_TLS"] == "true"
    security.write_environment({}, own_zookeeper=False)
    assert "export DAYBOOK_ZOOKEEPER_TLS" not in security.environment.read_text()
    assert "export DAYBOOK_BOOKIES_TLS" in security.environment.read_text()


def test_where_brokers_alone_are_locked_there_are_no_other_certificates(
    security: Security, clock: FixedClock
) -> None:
    older = Security(security.directory, security.names)
    prepared(older, clock)
    assert {file.name for file in older.directory.glob("*.pem")} == {
        *("authority.pem", "server.pem", "token-private.pem", "token-public.pem"),
    }
    older.write_environment({})
    assert "export DAYBOOK_TLS_CERTIFICATE" not in older.environment.read_text()
    assert older.bookie_settings(1) == {}
    assert older.zookeeper_server is None
    before = contents(older)
    # It is locked later: the certificate of the brokers gets its name if it had another one.
    authority = Authority.load(older.trusted, older.directory / "authority.key", time_of(clock))
    issued = authority.issue(older.names, timedelta(days=90), time_of(clock))
    key_files.replace(older.server, issued.certificate + issued.key)
    assert prepared(older, clock) == []
    assert prepared(security, clock) == [
        "new certificates are in server.pem, zookeeper.pem and admin.pem"
    ]
    assert changed(security, before) == CERTIFICATES
    assert prepared(security, clock) == []


def test_bookies_let_in_whom_the_certificates_name(security: Security, clock: FixedClock) -> None:
    prepared(security, clock)
    allowed = security.bookie_settings(1)["allowed_certificates"]
    for file in (security.server, security.admin_certificate):
        assert common_name_of(read_certificate(file)) in allowed
    assert kind_of(read_certificate(security.admin_certificate)) == "client"
    assert kind_of(read_certificate(security.server)) == "server"
    assert {*names_of(read_certificate(security.zookeeper))} == {"localhost", "127.0.0.1", "::1"}


def test_the_certificate_of_zookeeper_lives_as_long_as_the_authority(
    security: Security, clock: FixedClock
) -> None:
    """ZooKeeper reads it at its start alone."""
    prepared(security, clock)
    end = read_certificate(security.trusted).not_valid_after_utc
    assert read_certificate(security.zookeeper).not_valid_after_utc == end
