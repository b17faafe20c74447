from headrace.metrics.traffic import OTHERS, Flow, Traffic


def wrote(flow: Flow, size: int) -> None:
    flow.in_bytes += size
    flow.in_records += 1


def told(traffic: Traffic) -> dict[str, int]:
    sums = traffic.sums()
    for stream, _, flow in traffic.topics():
        sums.add(stream, flow)
    return {stream: flow.in_bytes for stream, flow in sums}


def test_topics_of_a_stream_share_its_flow() -> None:
    traffic = Traffic()
    assert traffic.of("/a", "t") is traffic.of("/a", "u")
    wrote(traffic.of("/a", "t"), 10)
    wrote(traffic.of("/b", "t"), 1)
    assert told(traffic) == {"/a": 10, "/b": 1}
    assert list(traffic.topics()) == []
    assert traffic.dropped == {"streams": 0, "topics": 0}


def test_streams_beyond_the_limit_are_told_together() -> None:
    traffic = Traffic(most_streams=2)
    for number in range(5):
        wrote(traffic.of(f"/{number}", "t"), 1 << number)
        wrote(traffic.of(f"/{number}", "t"), 1 << number)
    assert told(traffic) == {"/0": 2, "/1": 4, OTHERS: 56}
    assert traffic.dropped["streams"] == 3


def test_topics_have_flows_of_their_own_where_they_are_asked_for() -> None:
    traffic = Traffic(most_topics=2)
    for topic in ("t", "u", "v", "w", "v"):
        wrote(traffic.of("/a", topic), 1)
    assert [(stream, topic, flow.in_records) for stream, topic, flow in traffic.topics()] == [
        ("/a", "t", 1),
        ("/a", "u", 1),
    ]
    assert told(traffic) == {"/a": 5}
    assert traffic.dropped == {"streams": 0, "topics": 2}


def test_topics_of_streams_beyond_the_limit_count_among_others() -> None:
    traffic = Traffic(most_topics=9, most_streams=1)
    wrote(traffic.of("/a", "t"), 1)
    wrote(traffic.of("/b", "t"), 2)
    assert told(traffic) == {"/a": 1, OTHERS: 2}


def test_telling_changes_nothing() -> None:
    traffic = Traffic(most_topics=1)
    wrote(traffic.of("/a", "t"), 1)
    wrote(traffic.of("/a", "u"), 1)
    assert told(traffic) == told(traffic) == {"/a": 2}
