"""REST of the configuration and statistics of a broker, as Pulsar's tools ask for them.

No setting can be changed while a broker runs, so the lists of such settings are empty.
"""

from collections.abc import Mapping

from daybook.broker.admin.handling import Call, Handler
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import NotAllowedError

OpsCall = Call[Operations]


def table() -> dict[str, Mapping[str, Handler[Operations]]]:
    return {
        "/brokers/configuration": {"GET": _nothing_dynamic},
        "/brokers/configuration/values": {"GET": _no_values},
        "/brokers/configuration/runtime": {"GET": _runtime},
        "/brokers/configuration/{name}/{value}": {"POST": _refuse},
        "/brokers/configuration/{name}": {"DELETE": _refuse},
        "/brokers/internal-configuration": {"GET": _internal},
        "/broker-stats/load-report": {"GET": _load_report},
        "/broker-stats/topics": {"GET": _topics},
        "/daybook/brokers": {"GET": _rows},
        "/daybook/brokers/{broker}/drain": {"POST": _drain},
        "/daybook/balance": {"GET": _decisions},
        "/daybook/activity": {"GET": _activity},
        "/daybook/quarantine": {"GET": _quarantine},
        "/daybook/token-files": {"GET": _token_files},
        "/broker-stats/destinations": {"GET": _topics},
        "/clusters/{cluster}/failureDomains": {"GET": _no_values},
        "/clusters/{cluster}/namespaceIsolationPolicies": {"GET": _no_values},
        "/clusters/{cluster}/peers": {"GET": _nothing_dynamic},
    }


async def _nothing_dynamic(_: OpsCall) -> object:
    return []


async def _no_values(_: OpsCall) -> object:
    return {}


async def _runtime(call: OpsCall) -> object:
    return {"clusterName": call.parts.cluster, **call.parts.settings}


async def _internal(call: OpsCall) -> object:
    settings = call.parts.settings
    return {
        "zookeeperServers": settings.get("zookeeper", ""),
        "configurationStoreServers": settings.get("zookeeper", ""),
        "ledgersRootPath": settings.get("ledgers_root", ""),
        "bookkeeperMetadataServiceUri": (
            f"zk://{settings.get('zookeeper', '')}{settings.get('ledgers_root', '')}"
        ),
        "stateStorageServiceUrl": None,
    }


async def _refuse(call: OpsCall) -> None:
    raise NotAllowedError(
        f"{call.path('name')} cannot be changed while a broker runs: change the settings of the"
        " broker, and start it again"
    )


async def _topics(call: OpsCall) -> object:
    return await call.parts.loaded_stats()


async def _load_report(call: OpsCall) -> object:
    return await call.parts.of_brokers.load_report()


async def _rows(call: OpsCall) -> object:
    return await call.parts.of_brokers.rows()


async def _decisions(call: OpsCall) -> object:
    return await call.parts.of_brokers.decisions()


async def _activity(call: OpsCall) -> object:
    return call.parts.of_brokers.activity()


async def _quarantine(call: OpsCall) -> object:
    return call.parts.of_brokers.quarantine()


async def _token_files(call: OpsCall) -> object:
    return call.parts.of_brokers.token_files()


async def _drain(call: OpsCall) -> object:
    dry_run = call.flag("dryRun")
    return await call.parts.of_brokers.drain(call.path("broker"), dry_run=dry_run)
