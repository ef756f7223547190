"""How the context of the running command reaches ZooKeeper and bookies: TLS, users, the root.

The files of TLS of a context are for its brokers, its ZooKeeper and its bookies alike.  All of it
is for the addresses of the context alone: the one of its ZooKeeper, or the one of its brokers if
those tell where ZooKeeper is.
"""

from typing import Any

from daybook.clients.cli.chosen import context_of


def files_of_context(address: str) -> dict[str, Any]:
    """Return the TLS of the context that gave the command this address, as `TlsOptions` has it."""
    found = context_of(address)
    if found is None:
        return {}
    own = found.context
    return {
        "trusted": own.tls_trusted,
        "certificate": own.tls_certificate,
        "key": own.tls_key,
        "verify_host": own.tls_verify_host,
    }


def with_context(address: str, part: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return tls, user and password_file for a part, `zookeeper` or `bookie`.

    The context that has the address gives what was not given, None.  A user and its password are
    one: half of the pair is never completed by that of somebody else.
    """
    found = context_of(address)
    filled = {name: given.get(name) for name in ("tls", "user", "password_file")}
    if found is None:
        return filled
    own = found.context
    if filled["tls"] is None:
        filled["tls"] = getattr(own, f"{part}_tls")
    if filled["user"] is None and filled["password_file"] is None:
        filled["user"] = getattr(own, f"{part}_user")
        filled["password_file"] = getattr(own, f"{part}_password_file")
    return filled


def root_of_context(address: str) -> str | None:
    """Return the path of the ledgers in the context that has the address; None if it has none."""
    found = context_of(address)
    return None if found is None else found.context.ledgers_root
