"""Names of topics, and what becomes of them in ZooKeeper, in URLs, in the hash of bundles.

    my-topic                                  short for persistent://public/default/my-topic
    tenant/namespace/my-topic                 short for persistent://tenant/namespace/my-topic
    persistent://tenant/namespace/my-topic    the full name
    ...-partition-7                           one partition of a topic: a topic of its own

The bundle of a topic is found by the CRC-32 of its full name.  Names are encoded as Java's
URLEncoder does it where they become part of a path: `*` stays, `~` does not, a space is `+`.  What
no part of a path in ZooKeeper can be called, `.` and `..`, nothing is called here.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Self
from urllib.parse import quote_plus, unquote_plus
from zlib import crc32

from daybook.wire.errors import MalformedError

DOMAINS = ("persistent", "non-persistent")
_NAME_CHARS_MAX = 1024
_NAMED = re.compile(r"(?!\.\.?\Z)[-=:.\w]+", re.ASCII)  # tenants, namespaces
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)


def url_encode(name: str) -> str:
    """`name` as Java's URLEncoder encodes it."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def url_decode(text: str) -> str:
    """The inverse of `url_encode`."""
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedError(f"an encoded name: {error}") from None


def check_namespace(namespace: str) -> str:
    """`namespace` if it is `tenant/name`; raises MalformedError."""
    tenant, _, name = namespace.partition("/")
    if _NAMED.fullmatch(tenant) is None or _NAMED.fullmatch(name) is None:
        raise MalformedError(f"not a namespace: {namespace!r}")
    return namespace


@dataclass(frozen=True, order=True)
class TopicName:
    """The name of a topic, taken apart.  Two are equal if their full names are."""

    domain: str
    tenant: str
    short_namespace: str
    local: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """A full or a short name; raises MalformedError for anything else."""
        if len(name) > _NAME_CHARS_MAX:
            raise MalformedError(f"a topic name of {len(name)} characters")
        domain, found, rest = name.partition("://")
        if not found:
            domain, rest = "persistent", name
            if "/" not in name:
                rest = "public/default/" + name
        parts = rest.split("/")
        if domain not in DOMAINS or len(parts) != 3:
            raise MalformedError(f"not a topic name: {name!r}")
        tenant, namespace, local = parts
        if _NAMED.fullmatch(tenant) is None or _NAMED.fullmatch(namespace) is None:
            raise MalformedError(f"not a topic name: {name!r}")
        if not local.strip() or not local.isprintable() or local in (".", ".."):
            raise MalformedError(f"not a topic name: {name!r}")
        return cls(domain, tenant, namespace, local)

    @property
    def persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def namespace(self) -> str:
        """`tenant/namespace`."""
        return f"{self.tenant}/{self.short_namespace}"

    @cached_property
    def full(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.short_namespace}/{self.local}"

    @cached_property
    def partition(self) -> int:
        """The index of this partition; -1 if the name is not that of a partition."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match else -1

    @property
    def base(self) -> "TopicName":
        """The topic that this is a partition of; itself otherwise."""
        match = _PARTITION.fullmatch(self.local)
        if match is None:
            return self
        return TopicName(self.domain, self.tenant, self.short_namespace, match[1])

    def partition_name(self, index: int) -> "TopicName":
        """The name of one partition of this topic."""
        assert index >= 0
        local = f"{self.local}-partition-{index}"
        return TopicName(self.domain, self.tenant, self.short_namespace, local)

    @property
    def encoded(self) -> str:
        """The local name as part of a path."""
        return url_encode(self.local)

    @property
    def managed_ledger_name(self) -> str:
        """`tenant/namespace/persistent/encoded`: where its log is found in ZooKeeper."""
        return f"{self.namespace}/{self.domain}/{self.encoded}"

    @classmethod
    def of_managed_ledger(cls, name: str) -> Self:
        """The inverse of `managed_ledger_name`."""
        parts = name.split("/")
        if len(parts) != 4:
            raise MalformedError(f"not the name of a topic's log: {name!r}")
        tenant, namespace, domain, encoded = parts
        return cls.parse(f"{domain}://{tenant}/{namespace}/{url_decode(encoded)}")

    @cached_property
    def bundle_hash(self) -> int:
        """What the ranges of bundles are compared with: CRC-32 of the full name."""
        return crc32(self.full.encode())

    def __str__(self) -> str:
        return self.full
