"""Downloads Java jars with Maven, once, to bench/.work/ (git-ignored): Kafka's broker and tools, MirrorMaker 2, and
Spark's Kafka connector.

No file of Kafka is ever committed.
"""

import shutil
import subprocess
from pathlib import Path

BENCH = Path(__file__).resolve().parent
WORK = BENCH / ".work"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class JarsMissing(RuntimeError):
    """Maven or Java is missing, or Maven failed. The message says what to do."""


def fetch(pom: Path, folder: Path, *, timeout_s: float = 900.0) -> Path:
    """Copy the dependencies of `pom` to `folder` unless they are there; return `folder`. Raises JarsMissing."""
    done = folder / ".complete"
    wanted = pom.read_text()
    if done.exists() and done.read_text() == wanted:
        return folder
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise JarsMissing(
                f"{program} was not found: `apt-get install openjdk-17-jre-headless maven`, then run again"
            )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = ["mvn", "-q", "-B", "-f", str(pom), COPY]
    run = subprocess.run(
        [*command, f"-DoutputDirectory={folder}"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if run.returncode != 0:
        raise JarsMissing(f"Maven could not resolve {pom}: {(run.stdout + run.stderr)[-2000:]}")
    done.write_text(wanted)
    return folder


def kafka_classpath() -> str:
    """Return the class path of Kafka's broker and tools."""
    return f"{fetch(BENCH / 'peers' / 'pom.xml', WORK / 'kafka-4.3')}/*"


def mirror_maker_classpath() -> str:
    """Return the class path of MirrorMaker 2 with its Connect runtime."""
    return f"{fetch(BENCH / 'peers' / 'mirror-maker.xml', WORK / 'mirror-maker-4.3')}/*"


def spark_connector_jars() -> list[Path]:
    """Return the jars of Spark's own Kafka connector, for `spark.jars`."""
    return sorted(fetch(BENCH / "peers" / "spark-connector.xml", WORK / "spark-connector").glob("*.jar"))
