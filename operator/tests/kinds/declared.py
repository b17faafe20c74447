"""Volumes, Streams and Topics as users declare them."""

from headrace_operator.engine import Key
from headrace_operator.specs import FINALIZER

from ..fake_api import Object
from ..fake_cluster import World

REF = {"clusterRef": {"name": "c"}}
STREAM: Object = {**REF, "path": "/plant", "ttl": "7d"}
TOPIC: Object = {**REF, "stream": "/plant", "partitions": 3}


async def ended(world: World) -> Key:
    """A deleted Stream whose data are to be deleted with it."""
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    await world.run(key)
    assert world.api.one("Stream", "plant")["metadata"]["finalizers"] == [FINALIZER]
    world.api.remove("Stream", "plant")
    assert world.api.find("Stream")
    return key
