"""Names of topics, and their forms in ZooKeeper, in URLs and in the hash of bundles.

    my-topic                                  short for persistent://public/default/my-topic
    tenant/namespace/my-topic                 short for persistent://tenant/namespace/my-topic
    persistent://tenant/namespace/my-topic    the full name
    ...-partition-7                           one partition of a topic: a topic of its own

The bundle of a topic is found by the CRC-32 of its full name.  A name that becomes part of a path
is encoded as Java's URLEncoder does it: `*` stays, `~` does not, a space becomes `+`.  The names
`.` and `..` are refused, because ZooKeeper allows neither as a part of a path.
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
    """Return `name` as Java's URLEncoder encodes it."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def url_decode(text: str) -> str:
    """Reverse `url_encode`; raise MalformedError if the result is not UTF-8."""
    if "%" not in text and "+" not in text:
        return text  # Nearly all names of a long list are plain.
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedError(f"the name is not URL-encoded UTF-8: {error}") from None


def check_tenant(tenant: str) -> str:
    """Return `tenant` if it is the name of one, else raise MalformedError."""
    if _NAMED.fullmatch(tenant) is None:
        raise MalformedError(f"{tenant!r} is not the name of a tenant")
    return tenant


def check_namespace(namespace: str) -> str:
    """Return `namespace` if it is `tenant/name`, else raise MalformedError."""
    tenant, _, name = namespace.partition("/")
    if _NAMED.fullmatch(tenant) is None or _NAMED.fullmatch(name) is None:
        raise MalformedError(f"{namespace!r} is not a namespace: write tenant/namespace")
    return namespace


@dataclass(frozen=True, order=True)
class TopicName:
    """The parsed name of a topic.  Two are equal if their full names are."""

    domain: str
    tenant: str
    short_namespace: str
    local: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a full or a short name; raise MalformedError for anything else."""
        if len(name) > _NAME_CHARS_MAX:
            raise MalformedError(f"the topic name has {len(name)} characters, which is too many")
        domain, found, rest = name.partition("://")
        if not found:
            domain, rest = "persistent", name
            if "/" not in name:
                rest = "public/default/" + name
        parts = rest.split("/")
        if domain not in DOMAINS or len(parts) != 3:
            raise MalformedError(
                f"{name!r} is not a topic name: write NAME or persistent://TENANT/NAMESPACE/NAME"
            )
        tenant, namespace, local = parts
        if _NAMED.fullmatch(tenant) is None or _NAMED.fullmatch(namespace) is None:
            raise MalformedError(
                f"{name!r} is not a topic name: write NAME or persistent://TENANT/NAMESPACE/NAME"
            )
        # The records of a partition lie below the name of its topic.
        match = _PARTITION.fullmatch(local)
        is_path = (match[1] if match else local) in (".", "..")
        if not local.strip() or not local.isprintable() or is_path:
            raise MalformedError(
                f"{name!r} is not a topic name: write NAME or persistent://TENANT/NAMESPACE/NAME"
            )
        return cls(domain, tenant, namespace, local)

    @property
    def persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def namespace(self) -> str:
        """The namespace with its tenant: `tenant/namespace`."""
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
        """The topic of which this is a partition, or the topic itself."""
        match = _PARTITION.fullmatch(self.local)
        if match is None:
            return self
        return TopicName(self.domain, self.tenant, self.short_namespace, match[1])

    def partition_name(self, index: int) -> "TopicName":
        """Return the name of one partition of this topic."""
        assert index >= 0
        local = f"{self.local}-partition-{index}"
        return TopicName(self.domain, self.tenant, self.short_namespace, local)

    @property
    def encoded(self) -> str:
        """The local name as part of a path."""
        return url_encode(self.local)

    @property
    def managed_ledger_name(self) -> str:
        """The path of the topic's log in ZooKeeper: `tenant/namespace/persistent/encoded`."""
        return f"{self.namespace}/{self.domain}/{self.encoded}"

    @classmethod
    def of_managed_ledger(cls, name: str) -> Self:
        """Parse a `managed_ledger_name`."""
        parts = name.split("/")
        if len(parts) != 4:
            raise MalformedError(f"{name!r} is not the name of a topic's log")
        tenant, namespace, domain, encoded = parts
        return cls.parse(f"{domain}://{tenant}/{namespace}/{url_decode(encoded)}")

    @cached_property
    def bundle_hash(self) -> int:
        """The CRC-32 of the full name, which lies in the range of the topic's bundle."""
        return crc32(self.full.encode())

    def __str__(self) -> str:
        return self.full
