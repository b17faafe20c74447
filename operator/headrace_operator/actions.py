"""The `action` field of events: what was being done when the event happened. The reason says with what result. Pure."""

from collections.abc import Mapping
from typing import Final

OTHER: Final = "Reconcile"
ACTIONS: Final[Mapping[str, str]] = {
    # the cluster's controller
    "PrimaryMoved": "ElectPrimary",
    "ReplicasChanged": "PlaceReplicas",
    "LoadMoved": "BalanceLoad",
    "ContainerChanged": "CreateOrCloseContainer",
    "ContainerWaits": "ElectPrimary",
    "NodeChanged": "WatchNodes",
    "ControllerChanged": "ElectController",
    "FeatureLevelChanged": "RaiseFeatureLevel",
    "RedundancyChanged": "Replicate",
    "ClusterEvent": "WatchCluster",
    "StoreSetBack": "FreezeContainers",
    "StoreRecovered": "ThawContainers",
    "CatalogDamaged": "SetTablesAside",
    "CatalogRepaired": "RebuildTables",
    "TracingFailed": "ExportTraces",
    # a StreamCluster
    "PodRolled": "RestartPod",
    "ScaledUp": "AddPods",
    "ScaledDown": "RemovePod",
    "Draining": "DrainNode",
    "NodeRemoved": "RemoveNode",
    "ClaimDeleted": "DeleteClaim",
    "ReplicasRaised": "AlterVolume",
    "StorageGrows": "ExpandClaims",
    "ClaimReplaced": "ReplaceClaim",
    "NodePortChanged": "ApplyService",
    "AuthorityRenewed": "RenewAuthority",
    "CertificateRenewed": "RenewCertificate",
    "CredentialsRenewed": "RenewCredentials",
    # causes that need a person's attention
    "CertificateExpired": "CheckCertificates",
    "CertificateExpires": "CheckCertificates",
    "CertificateUnfit": "CheckCertificates",
    "AuthorityUnfit": "CheckCertificates",
    "NoAuthority": "CheckCertificates",
    "NodeDisagrees": "CheckCertificates",
    "ClaimWaits": "BindClaim",
    "DiskFull": "StoreRecords",
    "DrainRefused": "DrainNodes",
    "PodsCannotRun": "StartPods",
    "Refused": "ApplyObjects",
    "WrongListeners": "ApplyListeners",
    "WrongSettings": "ApplySettings",
    # resources within a cluster
    "NotDeleted": "Delete",
    "JobRestarted": "RestartDriver",
    "JobScaled": "ScaleExecutors",
    "ExecutorFailed": "ReplaceExecutor",
    "LinkCreated": "CreateLink",
    "LinkChanged": "AlterLink",
    "LinkPaused": "PauseLink",
    "LinkResumed": "ResumeLink",
    "SourceLost": "ConnectToSource",
    "SourceConnected": "ConnectToSource",
    "TopicsRefused": "CopyTopics",
    "RecordsDiverged": "SetRecordsAside",
    "HomeMoved": "MoveHome",
}


def action(reason: str) -> str:
    """Return the action of an event with this reason, or OTHER if the reason belongs to a reconcile as a whole."""
    return ACTIONS.get(reason, OTHER)
