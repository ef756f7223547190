"""A broker does not start with a certificate with which others could not reach it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import CapturingLogger
from trio.testing import MockClock

from daybook.broker.config import BrokerConfig, parse
from daybook.broker.errors import CannotJoinError
from daybook.broker.own_certificate import check_own_certificate
from daybook.broker.ownership.membership import Identity
from daybook.broker.tls import open_tls
from daybook.wire.tls_rehearsal import Fault, Reason
from tests.harness.certificates import Authority, Issued
from tests.harness.clocks import FixedClock

_DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


IDENTITY = Identity(
    "m1.example:8080", "life", None, None, service_url_tls="pulsar+ssl://m1.example:6651"
)


def config_of(issued: Issued, trusted: Path | str, **settings: object) -> BrokerConfig:
    return parse(
        {
            "host": "127.0.0.1",
            "advertised_host": "m1.example",
            "tls_port": 6651,
            "tls_certificate": str(issued.certificate),
            "tls_key": str(issued.key),
            "tls_trusted": str(trusted),
            **settings,
        }
    )


def looked_at(issued: Issued, trusted: Path | str, **settings: object) -> list[str]:
    """Return the warnings.  Raise CannotJoinError if the broker does not start."""
    plain = "pulsar://m1.example:6650" if settings.pop("plain", False) else None
    config = config_of(issued, trusted, **settings)
    lines = CapturingLogger()
    log = structlog.wrap_logger(lines, processors=[])
    tls = open_tls(config, FixedClock(), log)
    check_own_certificate(config, replace(IDENTITY, service_url=plain), tls, log)
    return [line.kwargs["event"] for line in lines.calls]


def refusal(issued: Issued, trusted: Path | str, **settings: object) -> str:
    with pytest.raises(CannotJoinError) as caught:
        looked_at(issued, trusted, **settings)
    return str(caught.value)


def test_a_certificate_for_the_advertised_host_is_good(authority: Authority) -> None:
    issued = authority.issue("good", hosts=("m1.example",))
    assert looked_at(issued, authority.trusted) == []
    assert looked_at(issued, authority.trusted, tls_client_certificates="required") == []


def test_one_for_another_host_is_refused_with_both_names(authority: Authority) -> None:
    issued = authority.issue("other", hosts=("m2.example", "127.0.0.1"))
    why = refusal(issued, authority.trusted, plain=True)
    assert f"tls_certificate {issued.certificate} is not made out to m1.example" in why
    assert "advertised_host" in why
    address = refusal(issued, authority.trusted, advertised_host="127.0.0.2")
    assert "is not made out to 127.0.0.2" in address


def test_one_that_is_not_valid_now_is_refused(authority: Authority) -> None:
    hosts = ("m1.example",)
    expired = authority.issue("expired", hosts=hosts, valid_for=-_DAY)
    assert "expired.pem for m1.example has expired" in refusal(expired, authority.trusted)
    early = authority.issue("early", hosts=hosts, valid_from=_DAY)
    assert "not valid yet: check the clock" in refusal(early, authority.trusted)


async def test_one_that_takes_its_place_later_is_looked_at_too(
    authority: Authority, autojump_clock: MockClock
) -> None:
    issued = authority.issue("changing", hosts=("m1.example",))
    lines = CapturingLogger()
    log = structlog.wrap_logger(lines, processors=[])
    config = config_of(issued, authority.trusted)
    tls = open_tls(config, FixedClock(), log)
    assert tls is not None
    assert tls.server is not None
    check_own_certificate(config, IDENTITY, tls, log)
    authority.issue("changing", hosts=("m2.example",))
    await trio.sleep(2)
    tls.server.contexts.get()
    errors = [line.kwargs["why"] for line in lines.calls if line.method_name == "error"]
    assert len(errors) == 1
    assert "changing.pem is not made out to m1.example" in errors[0]
    authority.issue("changing", hosts=("m1.example",))
    await trio.sleep(2)
    tls.server.contexts.get()
    assert [line.method_name for line in lines.calls].count("error") == 1


def test_one_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("known", hosts=("m1.example",))
    other = Authority(tmp_path, "other")
    why = refusal(issued, other.trusted)
    assert "known.pem for m1.example is signed by nobody in tls_trusted" in why
    assert str(other.trusted) in why


def test_a_broker_without_tls_trusted_may_be_alone(authority: Authority) -> None:
    issued = authority.issue("alone", hosts=("m1.example",))
    (warning,) = looked_at(issued, "")
    assert "set tls_trusted" in warning
    # Other brokers use the port without TLS.
    assert looked_at(issued, "", plain=True) == []


def test_one_that_is_no_certificate_of_a_client_is_told(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = authority.issue("server", hosts=("m1.example",))

    def refuse(*_: object) -> Fault:
        return Fault(Reason.CLIENT_REFUSED, "unsuitable purpose")

    monkeypatch.setattr("daybook.broker.own_certificate.rehearse", refuse)
    (warning,) = looked_at(issued, authority.trusted)
    assert "not valid for a client" in warning
