"""Assembles a node's parts for links: the server for other clusters' links, and its own links."""

from functools import partial

from headrace.base.runtime import Runtime
from headrace.links.failover.forwarding import Forwarding
from headrace.links.failover.home_apply import HomeApplier
from headrace.links.failover.name_clash import NameClashes
from headrace.links.failover.quarantine import OnceAppender, Quarantine
from headrace.links.link_admin import LinkAdmin
from headrace.links.links import Links, open_client
from headrace.links.pull.home_links import HomeLinks
from headrace.links.serving.homes import HomeApis
from headrace.links.serving.source_apis import SourceApis
from headrace.links.serving.topics import TopicApis
from headrace.links.topics.topic_apply import TopicApplier
from headrace.node.parts import NodeParts


def make_forwarding(home_links: HomeLinks, *, runtime: Runtime, own_cluster: str, secret: str) -> Forwarding:
    """The object that forwards writes on copies to the topic's home; `Links` closes it."""
    return Forwarding(
        home_links=home_links,
        runtime=runtime,
        own_cluster=own_cluster,
        open_client=partial(open_client, secret=secret),
    )


def serve_links(parts: NodeParts) -> None:
    """Register what the links of other clusters request of this node."""
    own = parts.node.cluster_id
    may = parts.authorizer
    source = SourceApis(
        catalog=parts.catalog, layout=parts.layout, changes=parts.changes, authorizer=may, own_cluster=own
    )
    topics = TopicApis(
        catalog=parts.catalog,
        cluster=parts.cluster,
        topics=parts.topics,
        partitions=parts.partitions,
        authorizer=may,
        own_cluster=own,
    )
    homes = HomeApis(
        catalog=parts.catalog,
        placement=parts.placement,
        states=parts.partition_states,
        authorizer=may,
        own_cluster=own,
    )
    for methods in (source.methods(), topics.methods(), homes.methods()):
        parts.admin.add(methods)


def make_links(parts: NodeParts, *, home_links: HomeLinks, forwarding: Forwarding, secret: str) -> Links:
    """Create a node's own links, and register the admin calls about them. The caller starts and closes the result."""
    own, catalog, led, states = parts.node.cluster_id, parts.catalog, parts.containers, parts.partition_states
    topics, partitions, rolls = parts.topics, parts.partitions, parts.rolls
    once = OnceAppender(topics=topics, partitions=partitions, rolls=rolls, runtime=parts.runtime)
    quarantine = Quarantine(
        catalog=catalog,
        cluster=parts.cluster,
        led=led,
        remote_reads=parts.remote_reads,
        placement=parts.placement,
        states=states,
        once=once,
        own_cluster=own,
    )
    home_applier = HomeApplier(
        catalog=catalog,
        topics=topics,
        partitions=partitions,
        rolls=rolls,
        led=led,
        quarantine=quarantine,
        own_cluster=own,
    )
    applier = TopicApplier(catalog=catalog, placement=parts.placement, own_cluster=own)
    links = Links(
        catalog=catalog,
        cluster=parts.cluster,
        led=led,
        topics=topics,
        partitions=partitions,
        rolls=rolls,
        home_check=parts.home_check,
        back_pressure=parts.back_pressure,
        states=states,
        once=once,
        home_applier=home_applier,
        applier=applier,
        home_links=home_links,
        forwarding=forwarding,
        runtime=parts.runtime,
        node_id=parts.node.node_id,
        own_cluster=own,
        secret=secret,
        tracer=parts.tracer,
    )
    clashes = NameClashes(catalog=catalog, quarantine=quarantine, states=states, own_cluster=own)
    admin = LinkAdmin(
        links,
        catalog=catalog,
        states=states,
        applier=applier,
        clashes=clashes,
        authorizer=parts.authorizer,
        own_cluster=own,
    )
    parts.admin.add(admin.methods())
    return links
