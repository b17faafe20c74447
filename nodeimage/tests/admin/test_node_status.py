"""A node's report about itself."""

import asyncio

from headrace.base.build import build
from headrace.base.errors import Code
from kit.admin_calls import create


class TestNode:
    async def test_status(self, call, ask, append, broker):
        await create(ask, "t", 3)
        await append("t", b"x" * 10_000)
        status = await call("status")
        assert (status["streams"], status["topics"], status["partitions"]) == (1, 1, 3)
        assert status["cluster"] == broker.node.cluster_id
        assert status["build"] == build()
        assert status["memory"]["resident_bytes"] > 1_000_000
        assert status["disk"]["free_bytes"] > 0
        containers = status["containers"]
        assert [each["kind"] for each in containers] == ["catalog", "data"]
        for each in containers:
            assert each["start"] <= each["committed"] <= each["end"]
            assert each["on_disk_bytes"] > 0
            assert each["chunks"] >= 1
            assert each["in_sync"] == str(broker.node.node_id)

    async def test_what_clients_wrote_to_streams_is_told_the_busiest_first(self, call, broker):
        for stream, size, count in (("/quiet", 1, 9), ("/busy", 3_000, 2)):
            flow = broker.traffic.of(stream, "t")
            flow.in_bytes, flow.in_records, flow.out_bytes, flow.out_records = size, count, 2 * size, 2 * count
        assert (await call("status"))["traffic"] == {
            "streams": [
                {
                    "stream": "/busy",
                    "in_since_start_bytes": 3_000,
                    "in_since_start_records": 2,
                    "out_since_start_bytes": 6_000,
                    "out_since_start_records": 4,
                },
                {
                    "stream": "/quiet",
                    "in_since_start_bytes": 1,
                    "in_since_start_records": 9,
                    "out_since_start_bytes": 2,
                    "out_since_start_records": 18,
                },
            ],
            "streams_in_others": 0,
        }

    async def test_a_scrub_runs_to_its_end_and_finds_no_fault(self, call, ask, append):
        await create(ask, "t")
        for _ in range(3):
            await append("t", b"x" * 600_000)  # three chunks of 1 MiB
        assert (await call("scrub.status"))["state"] == "never"
        state = await call("scrub.start")
        while state["running"]:
            await asyncio.sleep(0.01)
            state = await call("scrub.status")
        assert (state["state"], state["errors"]) == ("ended", [])
        assert state["containers_done"] == state["containers"] == 2
        assert state["read_bytes"] > 600_000

    async def test_settings(self, call, broker):
        assert (await call("node.settings"))["chunk_bytes"] == broker.node.settings.chunk_bytes

    async def test_every_method_answers_without_parameters_or_says_which_it_wants(self, raw_call, broker):
        for method in broker.admin.methods:
            answer = await raw_call(method)
            assert answer["error"] in (0, Code.INVALID_REQUEST, Code.POLICY_VIOLATION), (method, answer)
