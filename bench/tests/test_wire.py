"""The harness's small client is compatible with Kafka's implementations."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from bench import wire
from bench.clients.mock_broker import mock_broker
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_batches_are_read_by_another_implementation(values: list[bytes]) -> None:
    batch = DefaultRecordBatch(bytearray(wire.record_batch(values, timestamp=1_700_000_000_000)))
    assert batch.validate_crc()
    records = list(batch)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(len(values)))
    assert {record.timestamp for record in records} == {1_700_000_000_000}


def test_records_reach_a_broker_and_are_counted() -> None:
    with mock_broker(None) as bootstrap:
        wire.wait_for_ack(bootstrap, topic="ready", timeout_s=20.0)
        with wire.Client(bootstrap) as client:
            before = client.ends({"ready": [0]})["ready"]
            client.produce({"ready": wire.record_batch([b"x"] * 5)})
            assert client.ends({"ready": [0]})["ready"] - before == 5


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            wire.wait_for_answer(address, alive=lambda: True, timeout_s=0.3)


def test_a_server_that_ended_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RuntimeError, match="ended before it was ready"):
        wire.wait_for_answer(address, alive=lambda: False, timeout_s=30.0)


def test_a_connection_that_closes_within_an_answer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def half_an_answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\0\0\0\x40half")

        thread = threading.Thread(target=half_an_answer)
        thread.start()
        with wire.Client(address, timeout_s=10.0) as client, pytest.raises(ConnectionError):
            client.metadata(())
        thread.join()


@pytest.mark.parametrize("program", ["waiters", "waiters_librdkafka"])
def test_the_closed_loops_run_against_a_broker_that_does_nothing(program: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", f"bench.clients.{program}", "--seconds", "0.5", "--warm-up-s", "0", "--producers", "4"],
        cwd=Path(wire.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert '"per_s"' in run.stdout
