"""What answers the links of other clusters, put together."""

from headrace.admin.admin_api import add_methods
from headrace.kafka.dispatch import Broker
from headrace.links.serving.homes import HomeApis
from headrace.links.serving.source_apis import SourceApis
from headrace.links.serving.topics import TopicApis


def serve_links(broker: Broker) -> None:
    """Have a node answer what the links of other clusters ask."""
    own = broker.node.cluster_id
    source = SourceApis(catalog=broker.catalog, layout=broker.layout, changes=broker.changes, own_cluster=own)
    topics = TopicApis(
        catalog=broker.catalog,
        cluster=broker.cluster,
        topics=broker.topics,
        partitions=broker.partitions,
        own_cluster=own,
    )
    homes = HomeApis(
        catalog=broker.catalog, placement=broker.placement, states=broker.partition_states, own_cluster=own
    )
    add_methods(broker, {**source.methods(), **topics.methods(), **homes.methods()})
    add_methods(broker, source.session_methods(), of_session=True)
