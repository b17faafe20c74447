"""A Spark session on this machine; Java is looked up first, so that its absence is reported in one line.

Sets what must be set before Spark starts: Java, the workers' Python, the address.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace_spark import register
from headrace_spark.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT_LIVED: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"}
"""Settings for a program that runs for minutes: the optimizing compiler would take the cores that the queries need."""
REDACTED: Final = "(?i)secret|password|token|access[.]?key|jaas|ssl[.]key|keystore[.]key|private key"
"""Options that plans do not show, by name or value: those that Spark hides by default, and certificates' keys."""
LOWEST_JAVA = 17
HOW_TO_GET_JAVA = (
    "install a Java runtime of version 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17) "
    "or set JAVA_HOME to one that you have"
)


class NoJava(SourceError):
    """There is no Java on which Spark can run."""


def find_java() -> Path:
    """Return the java that Spark will start: JAVA_HOME's, else the PATH's. Raises NoJava, saying how to get it."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise NoJava(f"Spark needs Java, and none is found: {HOW_TO_GET_JAVA}")
    try:
        said = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJava(f"Spark needs Java, and {found} does not run ({error}): {HOW_TO_GET_JAVA}") from error
    version = java_version(said)
    if version is None or version < LOWEST_JAVA:
        raise NoJava(
            f"Spark needs Java {LOWEST_JAVA} or newer, and {found} is {version or 'unknown'}: {HOW_TO_GET_JAVA}"
        )
    return Path(found)


def java_version(said: str) -> int | None:
    """Return the feature version in the output of `java -version`: 17 for 17.0.15, 8 for 1.8.0_392."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def build_session(
    app_name: str = "headrace", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session that knows `format("headrace")`, on loopback, with this Python for its workers.

    `master` is local[*] by default, or spark-submit's; `conf` overrides the defaults here. Raises NoJava.
    """
    find_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _let_workers_import_this()
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A batch that is run again must have the same tasks (tokens.py); adaptive execution splits by shuffle sizes.
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
        "spark.redaction.regex": REDACTED,
        "spark.log.level": "ERROR",
        "spark.python.authenticate.socketTimeout": "60s",  # workers start slowly on a busy machine
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(app_name)
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has set it
        builder = builder.master(master or "local[*]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _let_workers_import_this() -> None:
    """Add the folders of our packages to the workers' path if they run from a checkout, not installed."""
    import headrace
    import headrace_spark

    folders = [str(Path(place).parent) for package in (headrace_spark, headrace) for place in package.__path__]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    added = [folder for folder in folders if folder not in known and "site-packages" not in folder]
    if added:
        os.environ["PYTHONPATH"] = os.pathsep.join([*added, *filter(None, known)])
