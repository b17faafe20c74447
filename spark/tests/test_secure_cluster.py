"""Reading and writing with authentication, and no secret in what Spark shows of it."""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.base.properties import parse_properties
from headrace.local.cluster import StartOptions, start
from headrace.local.folder import client_properties_path
from headrace.local.processes import free_port
from headrace.local.secure_folder import librdkafka_properties_path
from headrace.security.client_security import of_security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running secure cluster."""
    options = StartOptions(port=free_port("127.0.0.1"), secure=True)
    started = start(tmp_path_factory.mktemp("secure"), options, progress=lambda _: None)
    yield started.folder
    started.stop()


@pytest.fixture
def properties(folder: Path) -> Mapping[str, str]:
    """The properties of its administrator."""
    return parse_properties(client_properties_path(folder).read_text())


def test_rows_are_written_and_read_by_the_options_of_sparks_own_connector(
    spark: "SparkSession", properties: Mapping[str, str]
) -> None:
    options = {f"kafka.{name}": value for name, value in of_security(properties).items()}
    options["kafka.bootstrap.servers"] = properties["bootstrap.servers"]
    rows = spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
    rows.write.format("headrace").options(topic="batch", **options).mode("append").save()
    read = spark.read.format("headrace").options(topics="batch", **options).load()
    assert sorted(bytes(row["value"]) for row in read.collect()) == [b"1", b"2"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        read.explain(True)
    assert "Scan" in shown.getvalue()
    assert properties["sasl.password"] not in shown.getvalue()


def test_no_plan_shows_a_secret_of_the_options(spark: "SparkSession", properties: Mapping[str, str]) -> None:
    options = {f"kafka.{name}": value for name, value in of_security(properties).items()}
    options |= {"kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\ns3cret", "kafka.ssl.key.password": "s3cret"}
    session, jvm = spark._jsparkSession, spark._jvm  # type: ignore[attr-defined]  # what plans are printed with
    shown = session.sessionState().conf().redactOptions(jvm.PythonUtils.toScalaMap(options)).toString()
    assert "kafka.security.protocol -> SASL_SSL" in shown
    assert "s3cret" not in shown
    assert properties["sasl.password"] not in shown


def test_who_is_not_known_is_told_at_once_and_without_the_password(
    spark: "SparkSession", properties: Mapping[str, str]
) -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="eve" password="gue55";'
    read = spark.read.format("headrace").options(
        **{
            "topics": "batch",
            "bootstrap": properties["bootstrap.servers"],
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": login,
            "kafka.ssl.truststore.location": properties["ssl.truststore.location"],
        }
    )
    with pytest.raises(Exception, match="'eve' is refused: authentication failed") as refused:
        read.load().collect()
    assert "gue55" not in str(refused.value)


def test_a_query_commits_its_cursors_by_a_file_of_properties(
    spark: "SparkSession", folder: Path, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    options = {
        "bootstrap": parse_properties(client_properties_path(folder).read_text())["bootstrap.servers"],
        "propertiesFile": str(client_properties_path(folder)),
    }
    rows = spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
    rows.write.format("headrace").options(topic="streamed", **options).mode("append").save()
    read = spark.readStream.format("headrace").options(topics="streamed", group="watched", **options).load()
    query = (
        read.select("key", "value")
        .writeStream.format("headrace")
        .options(topic="copied", **options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None

    def committed() -> Any:
        told = parse_properties(librdkafka_properties_path(folder).read_text())
        consumer = Consumer({**told, "group.id": "watched"})
        found = consumer.committed([TopicPartition("streamed", 0)], timeout=30)[0].offset
        consumer.close()
        return found

    eventually(lambda: committed() == 2)
