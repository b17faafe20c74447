"""Which objects belong to a cluster: by their owner, or by their labels if they have no owner."""

from typing import Any

import pytest

from headrace_operator.builders.names import (
    CLUSTER_LABEL,
    COMPONENT_LABEL,
    ObjectName,
    belongs,
    bootstrap,
    labels,
    metadata,
    owner,
    record_name,
    selector,
)

CLUSTER: dict[str, Any] = {"kind": "StreamCluster", "metadata": {"name": "c", "uid": "u-1"}}


def test_what_is_made_for_a_cluster_goes_with_its_resource_unless_it_outlives_it() -> None:
    (reference,) = metadata("c-1", "ns", "c", owned_by=CLUSTER)["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"], reference["controller"]) == (
        "StreamCluster",
        "c",
        "u-1",
        True,
    )
    assert "ownerReferences" not in metadata("c-1", "ns", "c", owned_by=None)


def test_pods_are_found_by_labels_that_all_of_a_component_have() -> None:
    assert selector("c").items() <= labels("c").items()
    assert not selector("c", "job-driver").items() <= labels("c").items()
    assert not selector("d").items() <= labels("c").items()


def owned(*references: dict[str, Any], **given: str) -> dict[str, Any]:
    return {"metadata": {"ownerReferences": list(references), "labels": given}}


@pytest.mark.parametrize(
    ("found", "is_ours"),
    [
        (owned(owner(CLUSTER)), True),
        (owned(owner({**CLUSTER, "metadata": {"name": "c", "uid": "of a former one"}})), True),
        (owned(owner({**CLUSTER, "kind": "Deployment"}), **labels("c")), False),
        (owned(owner({**CLUSTER, "metadata": {"name": "d", "uid": "u"}}), **labels("c")), False),
        (owned(**labels("c")), True),
        (owned(**{CLUSTER_LABEL: "c"}), True),
        (owned(**{CLUSTER_LABEL: "c", COMPONENT_LABEL: "job-driver"}), False),
        (owned(**labels("d")), False),
        ({"metadata": {}}, False),
    ],
)
def test_an_object_is_a_clusters_own_by_its_owner_and_by_its_labels_where_it_has_none(
    found: dict[str, Any], is_ours: bool
) -> None:
    assert belongs(found, "c") is is_ours


def test_each_format_of_the_clusters_record_has_a_secret_of_its_own() -> None:
    assert [record_name("c"), record_name("c", 1), record_name("c", 2)] == ["c-cluster", "c-cluster", "c-cluster-2"]


def test_clients_begin_at_the_clusters_service() -> None:
    assert bootstrap("c", "ns") == "c-bootstrap.ns.svc:9092"


def test_secrets_that_changed_stand_beside_the_record() -> None:
    assert ObjectName.PEER_SECRETS.of("c") == "c-peer-secrets"
