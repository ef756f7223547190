"""Metrics of who was let in, who was refused or cut, and what the audit log could not take."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from daybook.broker.security.audit import Audit
from daybook.broker.security.authentication import AuthenticationCounts
from daybook.broker.security.token_trust import TokenTrust
from daybook.broker.service.accept import ClientPort
from daybook.broker.service.request_counts import RequestCounts

STAGES = ("handshake", "crowd", "greeting", "open", "http")


def authentication_metrics(cluster: str, counts: AuthenticationCounts) -> Iterator[Metric]:
    succeeded = CounterMetricFamily(
        "pulsar_authentication_success",
        "Clients that have proven who they are, by method.",
        labels=("cluster", "auth_method"),
    )
    for method, count in sorted(counts.succeeded.items()):
        succeeded.add_metric((cluster, method), count)
    yield succeeded
    failed = CounterMetricFamily(
        "pulsar_authentication_failures",
        "Clients that were refused because of their credentials, by method and reason.",
        labels=("cluster", "auth_method", "reason"),
    )
    for (method, reason), count in sorted(counts.failed.items()):
        failed.add_metric((cluster, method, reason), count)
    yield failed


def token_file_metrics(cluster: str, trust: TokenTrust | None) -> Iterator[Metric]:
    unusable = GaugeMetricFamily(
        "daybook_broker_token_file_unusable",
        "1: the file of keys or of revoked tokens cannot be used, so its former content counts.",
        labels=("cluster", "file"),
    )
    for file, problem in [] if trust is None else sorted(trust.problems.items()):
        unusable.add_metric((cluster, file), bool(problem))
    yield unusable


def cut_metrics(cluster: str, clients: ClientPort, requests: RequestCounts) -> Iterator[Metric]:
    """Yield how many clients were cut, by when that was."""
    cut = CounterMetricFamily(
        "daybook_broker_clients_cut",
        "Clients that were cut: in the TLS handshake, to make room for others, before they were"
        " connected, later, or on a port for HTTP.",
        labels=("cluster", "stage"),
    )
    counts = (
        clients.handshakes_failed,
        clients.cut,
        *(requests.cut[stage] for stage in ("greeting", "open", "http")),
    )
    for stage, count in zip(STAGES, counts, strict=True):
        cut.add_metric((cluster, stage), count)
    yield cut


def held_metrics(cluster: str, requests: RequestCounts) -> Iterator[Metric]:
    """Yield how many refusals were delayed, by port and by what was refused too often."""
    held = CounterMetricFamily(
        "daybook_broker_refusals_held",
        "Refusals that were delayed, because a connection, a role or an address was refused too"
        " often.",
        labels=("cluster", "port", "by"),
    )
    for (port, by), count in sorted(requests.held.items()):
        held.add_metric((cluster, port, by), count)
    yield held


def audit_metrics(cluster: str, audit: Audit) -> Iterator[Metric]:
    for name, text, count in (
        ("lines_dropped", "Lines of the audit log for which there was no room.", audit.dropped),
        (
            "refusals_summed",
            "Refusals that have no line of their own in the audit log, because there were many.",
            audit.refusals.left_out,
        ),
        (
            "actions_summed",
            "Allowed actions without a line of their own, because the same was done many times.",
            audit.actions.summed,
        ),
        ("write_failures", "Attempts to write the audit log that have failed.", audit.failures),
    ):
        counter = CounterMetricFamily(f"daybook_audit_{name}", text, labels=("cluster",))
        counter.add_metric((cluster,), count)
        yield counter
