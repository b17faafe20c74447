"""A StreamJob's driver: `python -m headrace_spark.job`.

Waits for what the job needs, creates the session, runs the application, and stays while a query runs. `ends` defines
how it ends; unless it is DONE, the job continues from the checkpoint when Kubernetes restarts the driver. SIGTERM stops
the queries wherever they are, like a kill: the checkpoint and the sink's tokens make that safe.
"""

import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace_spark.job import Job, current
from headrace_spark.job.ends import End, JobError, end_of, one_line, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace_spark.job.progress import Progress

WAIT_S: Final = 60.0
"""Seconds to wait for missing streams and topics; HEADRACE_JOB_WAIT_S overrides it."""
STOP_S: Final = 20.0
"""Seconds that queries get to stop after SIGTERM; Kubernetes kills the driver 20 s later."""
DOWNLOAD_S: Final = 60.0
REPORTED_S: Final = 15.0
"""Seconds to wait for Spark's reports of queries that have ended."""
TRIES: Final = 4
LATE: Final = "Python worker failed to connect back"
"""Part of Spark's error when the Python process that plans a query's batches has not started within 10 s, as on a busy
machine.
"""


def main() -> int:
    """Run the process; return its exit code."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    figures: Mapping[str, Any] = {}
    try:
        job = current()
        end, why, figures = _run(job, stopping)
    except SystemExit as ended:
        good = ended.code in (0, None)
        end, why = (End.DONE, "") if good else (End.FAILED, f"the application ended with {ended.code}")
    except Exception as error:
        end, why = end_of(error), one_line(error)
    if stopping.is_set() and end is not End.WRONG:
        end, why = End.STOPPED, "stopped"
    tell(end, why, figures)
    return end


def _run(job: Job, stopping: threading.Event) -> tuple[End, str, Mapping[str, Any]]:
    from headrace_spark.job.executors import Executors
    from headrace_spark.job.preflight import check
    from headrace_spark.job.progress import PORT, Looker, Progress, serve

    progress = Progress()
    server = serve(progress, job=job.name, port=int(os.environ.get("HEADRACE_JOB_PORT", PORT)))
    try:
        check(job, wait_s=float(os.environ.get("HEADRACE_JOB_WAIT_S", WAIT_S)), stopped=stopping.is_set)
        file = _file(job)
        spark = _session(job)
        looker = Looker(job, progress)
        watched: list[Looker | Executors] = [looker]
        if not (spark.sparkContext.master or "").startswith("local["):
            watched.append(Executors(spark, progress, job.autoscale))
        spark.streams.addListener(progress)
        threading.Thread(target=_stop, args=(spark, stopping), name="stop", daemon=True).start()
        try:
            for each in watched:
                each.start()
            failure = _queries(job, spark, file, progress)
            if not failure and not stopping.is_set():
                looker.finish()
        finally:
            for each in watched:
                each.stop()
            with suppress(Exception):  # Java may have ended already
                for query in spark.streams.active:
                    query.stop()
                spark.stop()
        return (End.FAILED if failure else End.DONE), failure, progress.status()
    finally:
        server.shutdown()


def _session(job: Job) -> "SparkSession":
    from headrace_spark.session import build_session

    os.environ.setdefault("SPARK_LOCAL_IP", os.environ.get("POD_IP", "127.0.0.1"))
    conf = {
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.ui.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    if "POD_NAME" in os.environ and (job.master or "").startswith("k8s:"):
        conf["spark.kubernetes.driver.pod.name"] = os.environ["POD_NAME"]  # the driver's pod owns the executors' pods
    return build_session(job.name, master=job.master, conf={**conf, **job.conf})


def _file(job: Job) -> Path | None:
    """Return the application's file; None for SQL. Raises JobError if it is not available."""
    application = job.application
    if application.path is not None:
        if not Path(application.path).is_file():
            raise JobError(End.WRONG, f"there is no application file {application.path} in the image or its ConfigMap")
        return Path(application.path)
    if application.url is not None:
        file = Path(tempfile.mkdtemp(prefix="application-")) / "main.py"
        try:
            with urllib.request.urlopen(application.url, timeout=DOWNLOAD_S) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise JobError(End.ABSENT, f"the application cannot be fetched from {application.url}: {error}") from error
        return file
    if application.sql is None:
        raise JobError(End.WRONG, "the job has no application: give one of configMap, path, url and sql")
    return None


def _queries(job: Job, spark: "SparkSession", file: Path | None, progress: "Progress") -> str:
    """Run the queries, again in the same session if Python started too late; return why they failed, or ""."""
    for tries_left in reversed(range(TRIES)):
        try:
            _start(job, spark, file)
            failure = _wait(spark, progress)
        except Exception as error:
            failure = one_line(error)
            if LATE not in failure or not tries_left:
                raise
        if LATE not in failure or not tries_left:
            break
        print(f"restarting a query: {failure}", file=sys.stderr, flush=True)
        for query in spark.streams.active:
            query.stop()
        if not _reported(progress):
            break
        progress.again()
    return failure


def _reported(progress: "Progress") -> bool:
    """Wait until Spark has reported the end of every started query; return False if that takes too long."""
    over = threading.Event()
    for _ in range(int(REPORTED_S * 10)):
        if progress.over:
            return True
        over.wait(0.1)
    return False


def _start(job: Job, spark: "SparkSession", file: Path | None) -> None:
    if file is None:
        for each in job.inputs:
            job.input(each.name).createOrReplaceTempView(each.name)
        assert job.application.sql is not None, "see _file"
        job.write(spark.sql(job.application.sql))
        return
    sys.argv = [str(file), *(part for name, value in job.parameters.items() for part in (f"--{name}", value))]
    sys.path.insert(0, str(file.parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise


def _wait(spark: "SparkSession", progress: "Progress") -> str:
    """Wait until no query runs any longer, or one has failed; return why it failed, or "".

    Queries themselves report how they ended. Spark's reports to listeners arrive later; they are awaited because they
    hold the last batch's figures, and decide only about queries that ended before they were seen here.
    """
    seen: dict[str, StreamingQuery] = {}
    try:
        while active := spark.streams.active:
            seen |= {str(query.runId): query for query in active}
            for query in active:
                query.awaitTermination(1)
            if progress.failure:
                return progress.failure
        for query in seen.values():
            query.awaitTermination()
    except Exception as error:
        return one_line(error)
    if _reported(progress) or progress.failure:
        return progress.failure
    return "a query ended, and Spark did not report how" if progress.started > len(seen) else ""


def _stop(spark: "SparkSession", stopping: threading.Event) -> None:
    """After SIGTERM, stop the queries, or end the process if that takes too long."""
    stopping.wait()
    late = threading.Timer(STOP_S, lambda: os._exit(End.STOPPED))
    late.daemon = True
    late.start()
    with suppress(Exception):  # Java may have ended too
        for query in spark.streams.active:
            query.stop()


if __name__ == "__main__":
    sys.exit(main())
