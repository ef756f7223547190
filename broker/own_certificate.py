"""The check of a broker's own certificate, before other brokers depend on it.

Other brokers have the same settings.  So this broker knows before it joins whether they would
accept its certificate.  A broker that they cannot reach would be of no use to them.
"""

import ssl

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import CannotJoinError
from daybook.broker.ownership.membership import Identity
from daybook.broker.ownership.peer_network import has_tls, preferred
from daybook.broker.tls import BrokerTls
from daybook.wire.logging import Log
from daybook.wire.tls_rehearsal import Fault, Reason, rehearse


def check_own_certificate(
    config: BrokerConfig, identity: Identity, tls: BrokerTls | None, log: Log
) -> None:
    """Raise CannotJoinError if other brokers, which use TLS to reach this one, refuse it.

    A certificate that takes its place later is looked at, too, and a fault is logged.
    """
    if tls is None or tls.server is None or not _is_reached_with_tls(config, identity):
        return
    server, client = tls.server.contexts, tls.client.contexts
    _check(config, server.latest, client.latest, log)

    def changed() -> None:
        try:
            _check(config, server.latest, client.get(), log)
        except CannotJoinError as error:
            log.error("the changed certificate of this broker is of no use", why=str(error))

    server.on_changed = changed


def _check(config: BrokerConfig, server: ssl.SSLContext, client: ssl.SSLContext, log: Log) -> None:
    fault = rehearse(server, client, config.public_host)
    match fault:
        case None:
            return
        case Fault(Reason.CLIENT_REFUSED, why):
            log.warning(
                "other brokers refuse calls of this broker: they demand certificates of their"
                " clients, and its own is not valid for a client",
                tls_certificate=config.tls_certificate,
                why=why,
            )
        case Fault(Reason.NOT_TRUSTED, why) if not config.tls_trusted:
            # A broker that is alone in its cluster needs no other one to trust it.
            log.warning(
                "other brokers cannot reach this broker, because the authorities of the machine"
                " have not signed its certificate: set tls_trusted",
                tls_certificate=config.tls_certificate,
                why=why,
            )
        case _:
            raise CannotJoinError(
                f"other brokers could not reach this broker: {_sentence(config, fault)}"
            )


def _is_reached_with_tls(config: BrokerConfig, identity: Identity) -> bool:
    """Return True if other brokers use a port with TLS of this broker."""
    pairs = (
        (identity.service_url, identity.service_url_tls),
        (identity.http_url, identity.http_url_tls),
    )
    return any(
        has_tls(preferred(plain, tls, prefers_tls=config.prefers_tls) or "") for plain, tls in pairs
    )


def _sentence(config: BrokerConfig, fault: Fault) -> str:
    certificate, host = f"tls_certificate {config.tls_certificate}", config.public_host
    match fault.reason:
        case Reason.NOT_MADE_OUT:
            return (
                f"{certificate} is not made out to {host}, which is its advertised_host: advertise"
                " a name that is in the certificate, or replace the certificate"
            )
        case Reason.EXPIRED:
            return f"{certificate} for {host} has expired: replace it"
        case Reason.NOT_YET_VALID:
            return f"{certificate} for {host} is not valid yet: check the clock of this machine"
        case Reason.NOT_TRUSTED:
            return (
                f"{certificate} for {host} is signed by nobody in tls_trusted"
                f" {config.tls_trusted} ({fault.why}): name the file of its authority there"
            )
        case _:
            return f"the TLS of {certificate} for {host} cannot be used: {fault.why}"
