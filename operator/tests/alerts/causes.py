"""Which alerts are seen under a real Prometheus, by a real cause: which test brings it about, and by what."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Cause(NamedTuple):
    """Of one alert."""

    test: str
    """Its name, without `test_`, in one of the modules `test_prometheus_*`."""
    what: str
    """What is done to real processes."""


CAUSES: Final[Mapping[str, Cause]] = {
    "HeadraceNodeDown": Cause("nodes_that_are_lost", "a node is killed"),
    "HeadraceRequestErrors": Cause("nodes_that_are_lost", "a producer goes on where a container takes no writes"),
    "HeadraceContainerWaits": Cause("nodes_that_are_lost", "the node with the only replica is killed"),
    "HeadraceContainerStalled": Cause("nodes_that_are_lost", "two nodes of three are killed"),
    "HeadraceUnderReplicated": Cause("nodes_that_are_lost", "a node of three is killed, and stays away"),
    "HeadraceControllerAbsent": Cause("a_store_that_is_away", "no node reaches the cluster store"),
    "HeadraceTwoControllers": Cause("two_clusters_under_one_job", "two clusters are scraped under one job"),
    "HeadraceStoreSilent": Cause("a_store_that_is_away", "no node reaches the cluster store"),
    "HeadraceCertificateExpires": Cause("certificates_and_logins", "a certificate with five days left"),
    "HeadraceCertificateExpiresNow": Cause("certificates_and_logins", "a certificate with one day left"),
    "HeadraceLoginsRefused": Cause("certificates_and_logins", "clients log in with a wrong password"),
}
