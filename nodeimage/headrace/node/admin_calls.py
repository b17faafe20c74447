"""Registers a node's admin calls, except those about links, which `links` registers."""

from headrace.admin.access import AccessCalls
from headrace.admin.access_changes import AccessChanges
from headrace.admin.applied_everywhere import AppliedEverywhere
from headrace.admin.cluster import ClusterCalls
from headrace.admin.cluster_security import SecurityCalls
from headrace.admin.containers import ContainerCalls
from headrace.admin.group_lag import GroupCalls
from headrace.admin.node_probes import NodeProbes
from headrace.admin.nodes import NodeCalls
from headrace.admin.streams import StreamCalls
from headrace.admin.topics import TopicCalls
from headrace.admin.users import UserCalls
from headrace.admin.volumes import VolumeCalls
from headrace.node.parts import NodeParts


def serve_admin_calls(parts: NodeParts) -> None:
    """Register the admin calls, so that the node answers them."""
    volumes = VolumeCalls(
        cluster=parts.cluster, store=parts.store, controller=parts.controller, volume_limits=parts.volume_limits
    )
    probes = NodeProbes(parts.cluster)
    nodes = NodeCalls(cluster=parts.cluster, store=parts.store, controller=parts.controller, probes=probes)
    everywhere = AppliedEverywhere(runtime=parts.runtime, catalog=parts.catalog, cluster=parts.cluster, probes=probes)
    access_changes = AccessChanges(
        catalog=parts.catalog, access=parts.access, authorizer=parts.authorizer, applied=everywhere
    )
    security_calls = SecurityCalls(catalog=parts.catalog, access=parts.access, changes=access_changes)
    cluster_calls = ClusterCalls(
        runtime=parts.runtime,
        cluster_id=parts.node.cluster_id,
        cluster=parts.cluster,
        store=parts.store,
        controller=parts.controller,
        redundancy=parts.redundancy,
        volume_limits=parts.volume_limits,
        probes=probes,
        nodes=nodes,
        security=security_calls.shown,
    )
    container_calls = ContainerCalls(
        runtime=parts.runtime, cluster=parts.cluster, catalog=parts.catalog, store=parts.store, probes=probes
    )
    for methods in (
        StreamCalls(
            catalog=parts.catalog,
            volumes=volumes,
            metrics=parts.stream_metrics,
            authorizer=parts.authorizer,
            changes=access_changes,
        ).methods(),
        TopicCalls(
            catalog=parts.catalog,
            cluster=parts.cluster,
            topics=parts.topics,
            partitions=parts.partitions,
            rolls=parts.rolls,
            states=parts.partition_states,
            remote_reads=parts.remote_reads,
            home_check=parts.home_check,
            authorizer=parts.authorizer,
        ).methods(),
        parts.status.methods(),
        GroupCalls(
            catalog=parts.catalog,
            coordination=parts.coordination,
            states=parts.partition_states,
            authorizer=parts.authorizer,
        ).methods(),
        cluster_calls.methods(),
        nodes.methods(),
        volumes.methods(),
        parts.features.methods(),
        container_calls.methods(),
        UserCalls(runtime=parts.runtime, catalog=parts.catalog, changes=access_changes).methods(),
        AccessCalls(
            catalog=parts.catalog, access=parts.access, authorizer=parts.authorizer, changes=access_changes
        ).methods(),
        security_calls.methods(),
    ):
        parts.admin.add(methods)
