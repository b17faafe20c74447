import socket
import urllib.request

import pytest

from headrace.base.errors import HeadraceError
from headrace.cli.probe_metrics import ProbeMetrics
from headrace.cli.probing import Result


def test_results_are_counted_by_node_and_served() -> None:
    metrics = ProbeMetrics()
    metrics.add([Result(node=1, partition=0, produce_s=0.002, roundtrip_s=0.02), Result(node=2, error="silent")])
    metrics.add([Result(node=1, partition=0, produce_s=0.003, roundtrip_s=0.03)])
    port = metrics.serve("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'headrace_probe_produce_seconds_count{node="1"} 2.0' in text
    assert 'headrace_probe_produce_seconds_bucket{le="0.0025",node="1"} 1.0' in text
    assert 'headrace_probe_roundtrip_seconds_sum{node="1"} 0.05' in text
    assert 'headrace_probe_probes_total{node="1"} 2.0' in text
    assert 'headrace_probe_failures_total{node="1"} 0.0' in text
    assert 'node="2"' not in text  # the node has left


def test_a_failure_is_counted() -> None:
    metrics = ProbeMetrics()
    metrics.add([Result(node=2, error="silent")])
    metrics.add([])  # no node is known
    sample = metrics.registry.get_sample_value
    assert sample("headrace_probe_failures_total", {"node": "2"}) == 1
    assert sample("headrace_probe_roundtrip_seconds_count", {"node": "2"}) == 0


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(HeadraceError, match="cannot be served"):
        ProbeMetrics().serve("127.0.0.1", taken.getsockname()[1])
