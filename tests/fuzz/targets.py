"""All targets by name, and their modules: a search imports and instruments only what it needs."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from tests.fuzz.target import Target

_MODULES = {
    "codecs": (
        "pulsar.frame",
        "pulsar.entry",
        "pulsar.batch",
        "compression",
        "fields",
        "topics",
    ),
    "bookie_codecs": (
        "bookie.request",
        "bookie.block",
        "bookie.answers",
        "bookie.v3",
        "bookie.entry",
        "bookie.entry_list",
    ),
    "bookie_entrance": ("bookie.digest", "bookie.entrance", "session.entrance"),
    "streams": ("stream",),
    "records": (
        "record.ledger",
        "record.cookie",
        "record.bookie",
        "record.log",
        "record.cursor",
        "cursor.ledger",
        "record.broker",
        "record.policies",
    ),
    "storage": ("storage.records", "storage.index", "storage.boot", "storage.identity"),
    "http": ("http.admin", "http.peer_answer", "http.admin_answer"),
    "handshakes": ("handshake.tls", "handshake.http", "handshake.credentials"),
    "control": ("control",),
    "broker_session": ("session.broker",),
    "bookie_session": ("session.bookie",),
    "peers": ("session.client", "session.ledger_client"),
}

WHOLE_HOSTS = frozenset(
    {
        "storage.boot",
        "http.admin",
        "session.broker",
        "session.bookie",
        "session.entrance",
        "session.client",
        "session.ledger_client",
    }
)
"""One input of these runs whole hosts: a hundredth of a second or more."""


class _Targets(Mapping[str, Target]):
    """A mapping that imports a target on first use."""

    def __init__(self) -> None:
        self._modules = {name: module for module, names in _MODULES.items() for name in names}

    def __getitem__(self, name: str) -> Target:
        module = import_module(f"tests.fuzz.{self._modules[name]}")
        targets: tuple[Target, ...] = module.TARGETS
        (found,) = (target for target in targets if target.name == name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


TARGETS: Mapping[str, Target] = _Targets()
