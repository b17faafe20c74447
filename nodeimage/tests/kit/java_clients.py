"""A JVM for each release of Kafka's Java clients that runs Headrace's test program (src/), driven by JSON lines.

The jars and the compiled program are kept under ~/.cache/headrace/java, by release and by the program's text, so only
the first run needs Maven.
"""

import hashlib
import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[1] / "clients" / "java"
CACHE = Path.home() / ".cache" / "headrace" / "java"
RELEASES = ("3.9.1", "4.3.1")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def program(release: str) -> Path:
    """The folder of the compiled program and its jars, created by Maven if it does not exist."""
    sources = [HERE / "pom.xml", *sorted(HERE.rglob("*.java"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = CACHE / f"{release}-{digest}"
    if (folder / "complete").exists():
        return folder
    missing = [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: `apt-get install openjdk-17-jdk-headless maven`")
    making = CACHE / f"{folder.name}-{uuid.uuid4().hex[:6]}"
    command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Dkafka.version={release}", f"-Dbuild.folder={making}"]
    made = subprocess.run(
        [*command, "compiler:compile", "dependency:copy-dependencies"], capture_output=True, text=True, timeout=600
    )
    if made.returncode != 0:
        said = made.stdout + made.stderr
        shutil.rmtree(making, ignore_errors=True)
        if "Could not transfer" in said or "Could not resolve" in said or "Unknown host" in said:
            pytest.skip(f"Maven cannot be reached, and the jars are not in {CACHE}: {said[-300:]}")
        pytest.fail(said[-3000:])
    (making / "complete").touch()
    try:
        making.rename(folder)
    except OSError:  # another run finished first
        shutil.rmtree(making)
    return folder


class JavaError(Exception):
    """An exception of a client: `name` is the simple name of its class."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class JavaClients:
    """One JVM with the clients of one release. Calls are answered one after the other."""

    def __init__(self, release: str, bootstrap: str, folder: Path, *options: str) -> None:
        """`options`: those of the JVM."""
        self.release = release
        self.bootstrap = bootstrap
        self.classpath = f"{folder}/classes:{folder}/jars/*"
        self._log = (folder / f"stderr-{uuid.uuid4().hex[:6]}").open("w+")
        self._process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", QUIET, *options),
                *("-cp", self.classpath, "dev.headrace.clients.Shell"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def call(self, command: str, **request: Any) -> Any:
        """The command's result. Raises JavaError with the client's exception."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"command": command, "bootstrap": self.bootstrap, **request})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the JVM ended: {self.said()}"
        found = json.loads(answer)
        if "error" in found:
            raise JavaError(found["error"], found["message"])
        return found["ok"]

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's command line programs in a separate JVM; returns everything that it printed."""
        run = subprocess.run(
            [
                *("java", "-XX:TieredStopAtLevel=1", QUIET, "-cp", self.classpath, f"org.apache.kafka.tools.{main}"),
                *("--bootstrap-server", self.bootstrap, *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout + run.stderr

    def said(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()[-2000:]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        Path(self._log.name).unlink()


__all__ = ["RELEASES", "JavaClients", "JavaError", "program"]
