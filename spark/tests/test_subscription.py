"""What a query's driver asks of the cluster: partitions of topics that come and go, and how large records are."""

from typing import TYPE_CHECKING

import pytest

from headrace_spark.options import read_options
from headrace_spark.subscription import Subscription

if TYPE_CHECKING:
    from conftest import Node


@pytest.mark.parametrize(
    "options", [{"stream": "/default", "topicPattern": "bare-.*"}, {"topicPattern": "/default:bare-.*"}]
)
def test_topics_of_the_default_stream_are_found_by_pattern(node: "Node", options: dict[str, str]) -> None:
    name = "bare-by-stream" if "stream" in options else "bare-by-name"
    node.produce(node.topic(name=name, partitions=2), [{"value": b"v", "partition": 1}])
    subscription = Subscription(read_options({"bootstrap": node.bootstrap, "timeout": "10", **options}))
    try:
        found = [partition for partition in subscription.partitions() if partition[0].endswith(name)]
        assert found == [(f"/default:{name}", 0), (f"/default:{name}", 1)]
        assert subscription.latest(found) == {found[0]: 0, found[1]: 1}
    finally:
        subscription.close()
