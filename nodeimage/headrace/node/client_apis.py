"""Registers the Kafka APIs that a node serves: one module of `kafka` for each family."""

from collections.abc import Sequence

from headrace.kafka import security
from headrace.kafka.acls import AclApis
from headrace.kafka.api import Api, RawApi
from headrace.kafka.api_versions import ApiVersionsApi
from headrace.kafka.client_quotas import ClientQuotaApis
from headrace.kafka.cluster import ClusterApis
from headrace.kafka.committed_offsets import CommittedOffsetApis
from headrace.kafka.configs import ConfigApis
from headrace.kafka.create_topics import CreateTopicsApis
from headrace.kafka.groups import GroupApis
from headrace.kafka.headrace_admin import HeadraceAdminApi
from headrace.kafka.init_producer_id import InitProducerIdApi
from headrace.kafka.reassignments import ReassignmentApis
from headrace.kafka.scram_credentials import ScramCredentialApis
from headrace.kafka.topics import TopicApis
from headrace.kafka.transactions import TransactionApis
from headrace.kafka.update_features import UpdateFeaturesApi
from headrace.node.parts import NodeParts


def serve_clients(parts: NodeParts) -> None:
    """Register the APIs, so that the node answers its clients."""
    asked = parts.authorization
    runtime, catalog, cluster, topics, partitions = (
        parts.runtime,
        parts.catalog,
        parts.cluster,
        parts.topics,
        parts.partitions,
    )
    shown = ClusterApis(
        topics=topics,
        catalog=catalog,
        cluster=cluster,
        layout=parts.layout,
        node=parts.node,
        folder=parts.folder,
        runtime=runtime,
        look_around=parts.look_around,
        authorization=asked,
    )
    made = CreateTopicsApis(
        catalog=catalog,
        cluster=cluster,
        node=parts.node,
        home_check=parts.home_check,
        placement=parts.placement,
        authorization=asked,
        throttle=parts.throttle,
    )
    configs = ConfigApis(
        catalog=catalog,
        cluster=cluster,
        layout=parts.layout,
        node=parts.node,
        folder=parts.folder,
        authorization=asked,
    )
    kafka_apis: Sequence[Api | RawApi] = (
        *parts.produce.apis,
        *parts.fetch.apis,
        *parts.metadata.apis,
        *InitProducerIdApi(producer_ids=parts.producer_ids, authorization=asked).apis,
        *parts.list_offsets.apis,
        *GroupApis(layout=parts.layout, coordination=parts.coordination, authorization=asked).apis,
        *CommittedOffsetApis(topics=topics, catalog=catalog, coordination=parts.coordination, authorization=asked).apis,
        *made.apis,
        *TopicApis(
            topics=topics, partitions=partitions, catalog=catalog, authorization=asked, throttle=parts.throttle
        ).apis,
        *shown.apis,
        *configs.apis,
        *ReassignmentApis(catalog=catalog, layout=parts.layout, folder=parts.folder, authorization=asked).apis,
        *TransactionApis(topics=topics, partitions=partitions, authorization=asked).apis,
        *UpdateFeaturesApi(features=parts.features, store=parts.store, authorization=asked).apis,
        *AclApis(runtime=runtime, catalog=catalog, access=parts.access, authorizer=parts.authorizer).apis,
        *ScramCredentialApis(catalog=catalog, authorizer=parts.authorizer).apis,
        *ClientQuotaApis(catalog=catalog, authorizer=parts.authorizer).apis,
        *security.APIS,
    )
    parts.dispatcher.add(kafka_apis)
    parts.dispatcher.add(ApiVersionsApi(runtime=runtime, view=cluster.view, others=kafka_apis).apis)
    parts.dispatcher.add(HeadraceAdminApi(parts.admin).apis)
