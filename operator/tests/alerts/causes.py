"""How each alert is triggered in a real Prometheus by a real cause: by which test, and by what.

No cause needs Kubernetes: the operator, where needed, runs against an API server in memory.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Cause(NamedTuple):
    """The cause of one alert."""

    test: str
    """The test's name, without `test_`, in one of the modules `test_prometheus_*`."""
    what: str
    """What is done to real processes."""


CAUSES: Final[Mapping[str, Cause]] = {
    "HeadraceNodeDown": Cause("nodes_that_are_lost", "a node is killed"),
    "HeadraceNodeMissing": Cause("a_node_that_is_no_target", "a node is killed, and its target is gone as a pod's is"),
    "HeadraceNodeNotReady": Cause("a_disk_that_fills", "a follower's disk is full, so that it falls behind"),
    "HeadraceNodeRestarts": Cause("a_node_that_restarts_again_and_again", "a node is killed and started four times"),
    "HeadraceLoopLag": Cause("a_slow_processor_and_a_slow_disk", "SIGSTOP takes the processor away now and then"),
    "HeadraceConnectionsNearLimit": Cause("limits_that_are_near", "clients open connections up to the limit"),
    "HeadraceDescriptorsNearLimit": Cause(
        "limits_that_are_near", "containers open files of a node with few (ulimit -n)"
    ),
    "HeadraceRequestErrors": Cause("nodes_that_are_lost", "a producer goes on where a container takes no writes"),
    "HeadraceContainerWaits": Cause("nodes_that_are_lost", "the node with the only replica is killed"),
    "HeadraceContainerStalled": Cause("nodes_that_are_lost", "two nodes of three are killed"),
    "HeadraceUnderReplicated": Cause("nodes_that_are_lost", "a node of three is killed, and stays away"),
    "HeadraceControllerAbsent": Cause("a_store_that_is_away", "no node reaches the cluster store"),
    "HeadraceTwoControllers": Cause("two_clusters_under_one_job", "two clusters are scraped under one job"),
    "HeadraceFailoverStorm": Cause("nodes_that_stand_still_in_turn", "SIGSTOP stops leaders in turn"),
    "HeadraceStoreSilent": Cause("a_store_that_is_away", "no node reaches the cluster store"),
    "HeadraceDiskLow": Cause("a_disk_that_fills", "a file fills the file system of a node"),
    "HeadraceDiskFull": Cause("a_disk_that_fills", "a file fills the file system of a node"),
    "HeadraceDiskFullSoon": Cause("a_disk_that_fills", "a file grows on the file system of a node"),
    "HeadraceSyncSlow": Cause("a_slow_processor_and_a_slow_disk", "fdatasync takes 0.2 s"),
    "HeadraceScrubFoundDamage": Cause("damage_on_disks", "a bit of a closed chunk flips, and a scrub reads it"),
    "HeadraceCatalogDamaged": Cause("damage_on_disks", "a row of a node's catalog changes behind its back"),
    "HeadraceGroupLag": Cause("a_group_whose_consumer_is_gone", "a consumer leaves, and its producer goes on"),
    "HeadraceLinkFailed": Cause("links", "the stream is deleted at the source"),
    "HeadraceLinkLag": Cause("links", "the network between two clusters is cut"),
    "HeadraceLinkBlocked": Cause("links", "a node of the source is killed that has the only replica"),
    "HeadraceRecordsSetAside": Cause("links", "a home is moved by force during a cut, and both sides take records"),
    "HeadraceCertificateExpires": Cause("certificates_and_logins", "a certificate with five days left"),
    "HeadraceCertificateExpiresNow": Cause("certificates_and_logins", "a certificate with one day left"),
    "HeadraceLoginsRefused": Cause("certificates_and_logins", "clients log in with a wrong password"),
    "HeadraceOperatorAbsent": Cause("an_operator", "the operator ends"),
    "HeadraceReconcilesFail": Cause("an_operator", "the API server refuses writes"),
    "HeadraceResourceNotReady": Cause("an_operator", "a Topic names a cluster that is not there"),
    "HeadraceWatchesMiss": Cause("an_operator", "the API server tells watches nothing"),
    "HeadraceJobLag": Cause("a_job_that_stands_still", "SIGSTOP stops the driver's Java"),
    "HeadraceJobStuck": Cause("a_job_that_stands_still", "SIGSTOP stops the driver's Java"),
    "HeadraceJobRestarts": Cause("a_job_that_fails_again_and_again", "a driver ends, as its input is not there"),
}
