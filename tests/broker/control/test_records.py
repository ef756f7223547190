"""The records of brokers in the metadata store, byte for byte; and the handling of invalid ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.registry.instance import InstanceRecord
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import (
    BrokerRecord,
    BundlesData,
    BundleStats,
    ClusterData,
    GuardRecord,
    LeaderRecord,
    LoadReport,
    LocalPolicies,
    OwnerRecord,
    PartitionedTopic,
    Successor,
    TenantInfo,
)
from daybook.broker.protocol.bundles import Bundles, bundle_name
from daybook.managed_ledger.tree import TreeRecord
from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName

GOLDEN = Path(__file__).parents[2] / "golden" / "broker_metadata_v1"
RECORDS: dict[str, object] = {
    "cluster": ClusterData("http://127.0.0.1:8080", None, "pulsar://127.0.0.1:6650"),
    "tenant": TenantInfo(["admin"], ["standalone"]),
    "local_policies": LocalPolicies(BundlesData.from_bundles(Bundles.equal(4))),
    "partitioned_topic": PartitionedTopic(4, properties={"owner": "team"}),
    "owner": OwnerRecord("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"),
    "owner_with_successor": OwnerRecord(
        "pulsar://127.0.0.1:6650",
        "http://127.0.0.1:8080",
        disabled=True,
        successor=Successor("pulsar://127.0.0.1:6651", "http://127.0.0.1:8081"),
    ),
    "broker": BrokerRecord(
        "pulsar://127.0.0.1:6650",
        "http://127.0.0.1:8080",
        start_timestamp=1_700_000_000_000,
        broker_version_string="0.1.0",
        protocols={"daybook": "0123456789abcdef"},
    ),
    "load_report": LoadReport(
        "pulsar://127.0.0.1:6650",
        "http://127.0.0.1:8080",
        start_timestamp=1_700_000_000_000,
        broker_version_string="0.1.0",
        protocols={"daybook": "0123456789abcdef"},
        last_update=1_700_000_060_000,
        msg_rate_in=10.5,
        num_topics=1,
        num_bundles=1,
        num_producers=1,
        bundles=["public/default/0x00000000_0x40000000"],
        last_stats={
            "public/default/0x00000000_0x40000000": BundleStats(
                msg_rate_in=10.5, producer_count=1, topics=1
            )
        },
    ),
    "leader": LeaderRecord("127.0.0.1:8080", "http://127.0.0.1:8080"),
    "guard": GuardRecord("127.0.0.1:8080", "0123456789abcdef"),
    "guard_with_instance": GuardRecord(
        "127.0.0.1:8080", "0123456789abcdef", instance="cd613e30-d8f1-4adf-91b7-584a2265b1f5"
    ),
    "instance": InstanceRecord("cd613e30-d8f1-4adf-91b7-584a2265b1f5"),
    "tree": TreeRecord("5d41402abc4b2a76b9719d911017c592"),
    "guard_with_formats": GuardRecord(
        "127.0.0.1:8080", "0123456789abcdef", formats=["cursor-change-2"]
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_as_they_were_released(name: str) -> None:
    record = RECORDS[name]
    golden = (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")
    assert records.encode(record) == golden
    assert records.decode(type(record), golden) == record


def test_what_a_newer_broker_adds_is_ignored() -> None:
    value = b'{"nativeUrl":"pulsar://a:1","somethingNew":[1],"advertisedListeners":{"x":{}}}'
    assert records.decode(OwnerRecord, value).native_url == "pulsar://a:1"


@given(st.binary(max_size=60), st.sampled_from([type(record) for record in RECORDS.values()]))
def test_nonsense_is_malformed_and_nothing_else(value: bytes, kind: type[object]) -> None:
    try:
        records.decode(kind, value)
    except MalformedError:
        return


def test_paths_are_pulsars() -> None:
    topic = TopicName.parse("persistent://t/n/a b")
    assert records.partitioned_path(topic) == "/admin/partitioned-topics/t/n/persistent/a+b"
    bundle = bundle_name("t/n", "0x00000000_0x40000000")
    assert records.owner_path(bundle) == "/namespace/t/n/0x00000000_0x40000000"
    assert records.policies_path("t/n") == "/admin/policies/t/n"
    assert records.local_policies_path("t/n") == "/admin/local-policies/t/n"
