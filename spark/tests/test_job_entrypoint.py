"""What the image starts, by the contract of Spark on Kubernetes; `tini` is a script that prints its arguments."""

import os
import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[1] / "entrypoint.sh"


@pytest.fixture
def path(tmp_path: Path) -> str:
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\nfor each in "$@"; do printf "%s\\n" "$each"; done\n')
    tini.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def started(path: str, *arguments: str, **environment: str) -> list[str]:
    env = {"PATH": path, "SPARK_HOME": "/opt/spark", **environment}
    done = subprocess.run(["sh", str(ENTRYPOINT), *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_job_is_the_program(path: str) -> None:
    assert started(path, "job") == ["-s", "--", "python", "-m", "headrace_spark.job"]


def test_a_driver_is_spark_submit_in_client_mode(path: str) -> None:
    arguments = ("--properties-file", "/opt/spark/conf/spark.properties", "local:///opt/headrace/job.py")
    assert started(path, "driver", *arguments, SPARK_DRIVER_BIND_ADDRESS="10.0.0.7") == [
        "-s", "--", "/opt/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7",
        "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.7", "--deploy-mode", "client", *arguments,
    ]  # fmt: skip


def test_an_executor_is_java_with_all_its_options(path: str) -> None:
    environment = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078", "SPARK_JAVA_OPT_1": "-Da=b c", "SPARK_JAVA_OPT_2": "-Dx=$y",
        "SPARK_DRIVER_URL": "spark://d:7078", "SPARK_EXECUTOR_ID": "1", "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "1024m", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod",
    }  # fmt: skip
    assert started(path, "executor", **environment) == [
        "-s", "--", "java", "-Dspark.driver.port=7078", "-Da=b c", "-Dx=$y", "-Xms1024m", "-Xmx1024m",
        "-cp", "/opt/spark/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url", "spark://d:7078", "--executor-id", "1", "--cores", "2", "--app-id", "app",
        "--hostname", "10.0.0.8", "--resourceProfileId", "0", "--podName", "pod",
    ]  # fmt: skip


def test_anything_else_is_run_as_it_is(path: str) -> None:
    assert started(path, "echo", "hello") == ["hello"]
