"""A node's command line: what is refused, and how it is parsed."""

from pathlib import Path

import pytest

from headrace.node.options import MINIMA, KubernetesCluster, parse
from headrace.partitions.cluster_layout import NodeSettings
from headrace.security.peer_tls import PeerTlsMode

STORED = ("--data", "/d", "--store", "/c.sqlite")


def test_what_is_not_said_is_the_default() -> None:
    options = parse(STORED)
    assert (options.data, options.store) == (Path("/d"), Path("/c.sqlite"))
    assert options.settings == NodeSettings()
    assert (options.listeners, options.labels, options.admin_port) == ({}, {}, None)


def test_metrics_are_served_where_that_is_said() -> None:
    assert parse(STORED).metrics_port is None
    assert parse((*STORED, "--metrics-port", "0")).metrics_port == 0
    assert parse((*STORED, "--metrics-port", "0", "--metrics-port=-1")).metrics_port is None
    assert parse((*STORED, "--metrics-topics", "7")).settings.metrics_topics == 7


def test_traces_go_where_it_is_said() -> None:
    assert parse(STORED).tracing_endpoint == ""
    assert parse((*STORED, "--tracing-endpoint", "http://here:4318")).tracing_endpoint == "http://here:4318"


def test_every_setting_can_be_said() -> None:
    said = parse((*STORED, "--chunk-bytes", "2000000", "--disk-quota", "7", "--no-fsync", "--max-connections", "50"))
    assert said.settings.chunk_bytes == 2_000_000
    assert said.settings.disk_quota == 7
    assert said.settings.max_connections == 50
    assert not said.settings.fsync


def test_listeners_and_labels_have_names() -> None:
    options = parse((*STORED, "--listener", "external=9094", "--label", "disk=ssd", "--label", "bare"))
    assert options.listeners == {"external": 9094}
    assert options.labels == {"disk": "ssd", "bare": ""}


def test_nodes_require_tls_of_each_other_unless_they_are_told_to_accept_both() -> None:
    assert parse(STORED).peer_tls is None
    assert parse((*STORED, "--peer-tls", "/tls")).peer_tls_mode is PeerTlsMode.REQUIRE
    options = parse((*STORED, "--peer-tls", "/tls", "--peer-tls-mode", "accept"))
    assert (options.peer_tls, options.peer_tls_mode) == (Path("/tls"), PeerTlsMode.ACCEPT)


def test_what_is_allowed_and_audited_is_a_list_of_actions() -> None:
    assert parse(STORED).audit_allowed == frozenset()
    assert parse((*STORED, "--audit-allowed", "admin, login,")).audit_allowed == {"admin", "login"}


def test_a_cluster_in_kubernetes_is_named_with_the_file_of_its_record() -> None:
    options = parse(("--data", "/d", "--kubernetes", "ns/c", "--cluster-record", "/r"))
    assert options.store == KubernetesCluster(name="c", namespace="ns", record=Path("/r"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "/d"), "--store"),
        ((*STORED, "--kubernetes", "ns/c"), "not allowed with"),
        (("--data", "/d", "--kubernetes", "c", "--cluster-record", "/r"), "NAMESPACE/CLUSTER"),
        (("--data", "/d", "--kubernetes", "ns/c"), "--cluster-record"),
        ((*STORED, "--listener", "external"), "NAME=PORT"),
        ((*STORED, "--listener", "=9094"), "NAME=PORT"),
        ((*STORED, "--listener", "a=1", "--listener", "a=2"), "twice"),
        ((*STORED, "--chunk", "5"), "unrecognized"),
        ((*STORED, "--admin-token-file", "/t"), "--admin-token-file needs --admin-port"),
        ((*STORED, "--peer-tls-mode", "accept"), "--peer-tls-mode needs --peer-tls"),
        ((*STORED, "--peer-tls", "/t", "--peer-tls-mode", "off"), "invalid choice"),
        ((*STORED, "--audit-allowed", "login,write"), "--audit-allowed has no write; there are produce, consume,"),
        *(((*STORED, f"--{name.replace('_', '-')}", str(least - 1)), "the least is") for name, least in MINIMA.items()),
    ],
)
def test_what_cannot_be_is_refused_with_its_option(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
