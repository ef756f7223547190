"""Clusters, tenants and namespaces: listing, creating and deleting them; the first ones.

`bootstrap` may run on several brokers at once, and again at each start.  It creates missing records
and never changes existing ones.
"""

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    InvalidNameError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import DEFAULT_NAMESPACE, Policies
from daybook.broker.namespaces.policy_table import Fields, Policy
from daybook.broker.namespaces.records import BundlesData, ClusterData, TenantInfo
from daybook.broker.ownership.membership import ensure
from daybook.broker.protocol.bundles import Bundles
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import (
    ANY,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    RecordExistsError,
    VersionConflictError,
)
from daybook.wire.topics import DOMAINS, check_namespace, check_tenant

DEFAULT_TENANT = "public"


class Tenancy:
    """Administration above the level of topics."""

    def __init__(self, store: MetadataStore, policies: Policies, config: BrokerConfig) -> None:
        self._store = store
        self._policies = policies
        self._config = config

    async def bootstrap(self, cluster: ClusterData | None = None) -> None:
        """Create the cluster and public/default, if missing.

        Raise MetadataError; the caller then tries again.
        """
        name = self._config.cluster
        tenant = TenantInfo([], [name])
        bundles = Bundles.equal(self._config.default_namespace_bundles)
        default = self._new_policies(bundles)
        for path, value in (
            (records.PRODUCER_NAMES, b""),
            (records.OWNERS, b""),
            (records.BROKERS, b""),
            (records.GUARDS, b""),
            (f"{records.CLUSTERS}/{name}", records.encode(cluster or ClusterData())),
            (records.policies_path(DEFAULT_TENANT), records.encode(tenant)),
            (records.policies_path(DEFAULT_NAMESPACE), records.encode(default)),
        ):
            await ensure(self._store, path, value)

    def _new_policies(self, bundles: Bundles) -> Fields:
        return {
            "replication_clusters": [self._config.cluster],
            "bundles": BundlesData.from_bundles(bundles),
            "deleted": False,
            # Stored explicitly: a Pulsar broker that takes over has another default and drops data.
            "retention_policies": self._policies.defaults.retention,
        }

    # -- clusters

    async def clusters(self) -> list[str]:
        return await self._children(records.CLUSTERS)

    async def cluster(self, name: str) -> ClusterData:
        value = await self._get(f"{records.CLUSTERS}/{_checked(name)}", f"the cluster {name}")
        return _decoded(ClusterData, value)

    async def create_cluster(self, name: str, data: ClusterData) -> None:
        path = f"{records.CLUSTERS}/{_checked(name)}"
        await self._create(path, records.encode(data), f"the cluster {name}")

    async def change_cluster(self, name: str, data: ClusterData) -> None:
        path, what = f"{records.CLUSTERS}/{_checked(name)}", f"the cluster {name}"
        await self._replace(path, records.encode(data), what)

    async def delete_cluster(self, name: str) -> None:
        if name == self._config.cluster:
            raise ConflictError(f"the cluster {name} cannot be deleted: this broker belongs to it")
        await self._delete(f"{records.CLUSTERS}/{_checked(name)}", f"the cluster {name}")

    # -- tenants

    async def tenants(self) -> list[str]:
        return await self._children(records.POLICIES)

    async def tenant(self, name: str) -> TenantInfo:
        value = await self._get(records.policies_path(_checked(name)), f"the tenant {name}")
        return _decoded(TenantInfo, value) if value else TenantInfo()

    async def create_tenant(self, name: str, info: TenantInfo) -> None:
        if name in DOMAINS:
            raise InvalidNameError(
                f"{name!r} is a domain of topics, and a tenant of that name would be mistaken for"
                " it: choose another name"
            )
        await self._check_info(info)
        path = records.policies_path(_checked(name))
        await self._create(path, records.encode(info), f"the tenant {name}")

    async def change_tenant(self, name: str, info: TenantInfo) -> None:
        await self._check_info(info)
        path = records.policies_path(_checked(name))
        try:
            await self._replace(path, records.encode(info), f"the tenant {name}")
        finally:
            self._policies.record_changed(name)

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant.  Raise ConflictError while it has namespaces."""
        try:
            await self._delete(records.policies_path(_checked(name)), f"the tenant {name}")
        finally:
            self._policies.record_changed(name)

    async def _check_info(self, info: TenantInfo) -> None:
        if "" in info.admin_roles:
            raise PreconditionError("a role in adminRoles is empty: leave it out, or name it")
        await self._check_clusters(info.allowed_clusters)

    async def _check_clusters(self, names: list[str]) -> None:
        missing = sorted({*names} - {*await self.clusters()})
        if missing:
            raise PreconditionError(
                f"there is no cluster {', '.join(missing)}: create it first, or leave it out"
            )

    # -- namespaces

    async def namespaces(self, tenant: str) -> list[str]:
        await self.tenant(tenant)
        names = await self._children(records.policies_path(tenant))
        return [f"{tenant}/{name}" for name in names]

    async def create_namespace(
        self, namespace: str, *, bundles: Bundles | None = None, policies: Fields | None = None
    ) -> None:
        """Create a namespace.  `policies` are further fields of its record, which were checked.

        Raise ConflictError if it exists, and say so if it is being deleted.
        """
        _check_namespace(namespace)
        await self.tenant(namespace.partition("/")[0])
        fields = self._new_policies(bundles or Bundles.equal(self._config.bundles))
        fields |= policies or {}
        path = records.policies_path(namespace)
        try:
            await self._create(path, records.encode(fields), f"the namespace {namespace}")
        except ConflictError:
            if await self._is_being_deleted(namespace):
                raise ConflictError(f"the namespace {namespace} is being deleted") from None
            raise

    async def _is_being_deleted(self, namespace: str) -> bool:
        """Return True if the record says so; False, too, if it cannot be read now."""
        try:
            return (await self.policies_record(namespace)).get("deleted") is True
        except BrokerError:
            return False

    async def policies_record(self, namespace: str) -> Fields:
        """Return the record unchanged, with fields that a Pulsar broker may have left there."""
        path = records.policies_path(_check_namespace(namespace))
        value = await self._get(path, f"the namespace {namespace}")
        return _decoded(Fields, value) if value else {}

    async def set_policy(self, namespace: str, policy: Policy, value: object) -> None:
        """Set a policy of a namespace.  None removes it; then the broker's setting counts."""
        await self._policies.set_namespace_policy(_check_namespace(namespace), policy, value)

    async def mark_deleted(self, namespace: str, *, deleted: bool) -> int:
        """Mark the namespace: no topic of it is created while marked, so a list is complete.

        Return the version of the marked record.  Raise ConflictError for the default namespace.
        """
        if deleted and namespace == DEFAULT_NAMESPACE:
            raise ConflictError(f"the namespace {namespace} cannot be deleted: it is the default")

        def change(fields: Fields) -> None:
            fields["deleted"] = deleted

        return await self._policies.change_namespace(_check_namespace(namespace), change)

    async def delete_namespace_records(self, namespace: str, marked: int = ANY) -> None:
        """Delete the records of a namespace that has no topics left.

        `marked` is the version of the record since its topics were listed.  Raise UnavailableError
        if the record was changed since: the mark may have been taken off.
        """
        local = records.local_policies_path(namespace)
        try:
            record = await self._store.get(local)
            deletes = [Delete(records.policies_path(namespace), marked)]
            if record is not None:
                deletes.append(Delete(local, record.stat.version))
            await self._store.multi(deletes)
        except NoRecordError:
            raise NotFoundError(f"the namespace {namespace} does not exist") from None
        except VersionConflictError:
            raise UnavailableError(
                f"the namespace {namespace} was changed while it was being deleted, so it stays:"
                " try again"
            ) from None
        except MetadataError as error:
            raise UnavailableError(
                f"the namespace {namespace} may not have been deleted: {error}"
            ) from error

    # -- records

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.get_children(path) or []
        except MetadataError as error:
            raise UnavailableError(f"{path} cannot be read now: {error}") from error

    async def _get(self, path: str, what: str) -> bytes:
        try:
            record = await self._store.get(path)
        except MetadataError as error:
            raise UnavailableError(f"{what} cannot be read now: {error}") from error
        if record is None:
            raise NotFoundError(f"{what} does not exist")
        return record.value

    async def _create(self, path: str, value: bytes, what: str) -> None:
        try:
            await self._store.create(path, value, make_parents=True)
        except RecordExistsError:
            raise ConflictError(f"{what} exists already") from None
        except MetadataError as error:
            raise UnavailableError(f"{what} may not have been created: {error}") from error

    async def _replace(self, path: str, value: bytes, what: str) -> None:
        """Replace a whole record; the last one who does so decides what it says."""
        try:
            await self._store.set(path, value, ANY)
        except NoRecordError:
            raise NotFoundError(f"{what} does not exist") from None
        except MetadataError as error:
            raise UnavailableError(f"{what} may not have been changed: {error}") from error

    async def _delete(self, path: str, what: str) -> None:
        try:
            await self._store.delete(path, ANY)
        except NoRecordError:
            raise NotFoundError(f"{what} does not exist") from None
        except NotEmptyError:
            raise ConflictError(f"{what} is not empty: delete what it contains first") from None
        except MetadataError as error:
            raise UnavailableError(f"{what} may not have been deleted: {error}") from error


def _checked(name: str) -> str:
    """Check the name of a cluster or tenant and return it."""
    try:
        check_tenant(name)
    except MalformedError:
        raise InvalidNameError(
            f"{name!r} is not a valid name for a cluster or tenant: use letters, digits and -=:._"
        ) from None
    return name


def _check_namespace(namespace: str) -> str:
    try:
        return check_namespace(namespace)
    except MalformedError as error:
        raise InvalidNameError(str(error)) from None


def _decoded(kind: type[records.RecordT], value: bytes) -> records.RecordT:
    try:
        return records.decode(kind, value)
    except MalformedError as error:
        raise UnavailableError(str(error)) from error
