"""What was being done when an event happened: its `action`, beside the reason, which says what came of it. Pure."""

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
    # of a StreamCluster
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
    # causes that somebody has to see to
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
    # of what lies in one
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
    """Of an event with this reason; OTHER where it came of a reconcile as a whole."""
    return ACTIONS.get(reason, OTHER)
