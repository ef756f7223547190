"""Decide where the brokers of a standalone cluster listen, and whether the cluster is secure.

A new cluster that others can reach has to be secure, or its owner says that it need not be:

    last start    brokers listen on    --secure    --insecure    neither
    none, "none"  loopback             secure      insecure      none
    none, "none"  another address      secure      insecure      refused
    older         another address      secure      insecure      as before, with a warning
    insecure      another address      secure      insecure      insecure, with a warning
    secure        any                  secure      insecure      secure

An "older" cluster was made before there was a choice.  Bookies and ZooKeeper always listen on the
loopback interface.  They are locked together with the brokers, except in a cluster that was made
secure when brokers alone could be locked: there a start with `--lock-storage` locks them.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from daybook.clients.cli.directory import LOOPBACK, Choice, Saved
from daybook.clients.cli.errors import UserError
from daybook.wire.own_address import is_loopback, reachable_host
from daybook.wire.settings import ANY_ADDRESS


@dataclass(frozen=True, slots=True)
class Exposure:
    """Where brokers listen, the host that others connect to, and what is decided."""

    host: str = LOOPBACK
    advertised_host: str = LOOPBACK
    security: Choice = "none"
    names: tuple[str, ...] = ()  # further names in the certificate of the brokers
    warnings: tuple[str, ...] = ()
    storage: bool = False  # bookies and ZooKeeper are locked, too, in a secure cluster

    @property
    def is_secure(self) -> bool:
        return self.security == "secure"


def decide_exposure(
    host: str | None,
    advertised_host: str | None,
    *,
    secure: bool | None,
    lock_storage: bool = False,
    names: Sequence[str],
    before: Saved | None,
    has_keys: bool,
) -> Exposure:
    """Return the decision.  Raise `UserError` if it is refused or cannot be made.

    `secure` is None if the user does not say.  `has_keys`: there are keys of a secure cluster.
    """
    listens = host or LOOPBACK
    choice = _choice(before, has_keys)
    warnings: list[str] = []
    if secure is not None:
        if choice == "secure" and not secure:
            warnings.append(
                "this cluster was secure, and now lets everybody in who reaches it; the next start"
                " with --secure locks it again"
            )
        choice = "secure" if secure else "insecure"
    if lock_storage and choice != "secure":
        raise UserError("--lock-storage is for a secure cluster: give --secure, too.")
    if names and choice != "secure":
        raise UserError("--san is for the certificate of a secure cluster: give --secure, too.")
    if choice != "secure" and not _is_local(listens):
        if choice == "none":
            raise UserError(
                f"Other machines could reach the brokers at {listens}, and everybody who does may"
                " read, write and delete everything: lock the cluster with --secure, or say with"
                " --insecure that nobody else can reach this network."
            )
        warnings.append(
            f"everybody who reaches {listens} may read, write and delete everything in this"
            " cluster; --secure locks it"
        )
    _check_own(listens)
    return Exposure(
        host=listens,
        advertised_host=_advertised(listens, advertised_host),
        security=choice,
        names=tuple(names) or (() if before is None else before.names),
        warnings=tuple(warnings),
        storage=choice == "secure" and (lock_storage or not _only_brokers(before)),
    )


def _choice(before: Saved | None, has_keys: bool) -> Choice:
    if before is None:
        # The state was lost or removed, and the keys were not: never open such a cluster.
        return "secure" if has_keys else "none"
    return before.security


def _only_brokers(before: Saved | None) -> bool:
    """Return True for a cluster that is secure, and whose bookies and ZooKeeper ask nobody."""
    return before is not None and before.security == "secure" and "bookies" not in before.locked


def _is_local(host: str) -> bool:
    try:
        return is_loopback(host)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror or error}.") from None


def _check_own(host: str) -> None:
    """Raise UserError if this machine cannot listen on `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
    except OSError as error:
        raise UserError(
            f"--host {host} is no address of this machine ({error.strerror or error}): give one, or"
            " 0.0.0.0 for all of them."
        ) from None


def _advertised(host: str, told: str | None) -> str:
    if told in ANY_ADDRESS:
        raise UserError(f"--advertised-host {told}: nobody can connect to that address.")
    if told or host not in ANY_ADDRESS:
        return told or host
    found = reachable_host()
    if found is None:
        raise UserError(
            f"--host {host}: this machine has no address that others can reach, as far as it knows:"
            " give the name or address by which they do, with --advertised-host."
        )
    return found
