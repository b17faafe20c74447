"""A StreamJob's driver: `python -m headrace_spark.job`.

Makes the session, runs the application, and stays as long as a query runs. Ends with 0 when all queries have ended by
themselves (`availableNow`), with 1 when one failed: Kubernetes starts it again, and it goes on from its checkpoint.
"""

import os
import runpy
import signal
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_spark.job import Job, current
from headrace_spark.job.progress import Progress, serve
from headrace_spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> int:
    """The process."""
    job = current()
    os.environ.setdefault("SPARK_LOCAL_IP", os.environ.get("POD_IP", "127.0.0.1"))
    conf = {"spark.driver.bindAddress": "0.0.0.0", "spark.ui.enabled": "true", "spark.log.level": "WARN", **job.conf}
    spark = build_session(job.name, master=job.master, conf=conf)
    progress = Progress()
    spark.streams.addListener(progress)
    serve(progress, spark)
    signal.signal(signal.SIGTERM, lambda *_: _stop(spark))
    try:
        _run(job, spark)
        failed = _wait(spark)
    except SystemExit as ended:
        failed = "" if ended.code in (0, None) else f"the application ended with {ended.code}"
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.stop()
    if failed:
        print(f"headrace: {failed}", file=sys.stderr)
    return 1 if failed else 0


def _stop(spark: "SparkSession") -> None:
    for query in spark.streams.active:
        query.stop()


def _run(job: Job, spark: "SparkSession") -> None:
    application = job.application
    if "sql" in application:
        job.input().createOrReplaceTempView("input")
        job.write(spark.sql(application["sql"]))
        return
    file = application.get("path")
    if "url" in application:
        folder = Path(tempfile.mkdtemp(prefix="application-"))
        file = str(folder / "main.py")
        urllib.request.urlretrieve(application["url"], file)
    assert file is not None, "the CRD asks for one of configMap, path, url and sql"
    sys.argv = [file, *(part for name, value in job.parameters.items() for part in (f"--{name}", value))]
    sys.path.insert(0, str(Path(file).parent))
    runpy.run_path(file, run_name="__main__")


def _wait(spark: "SparkSession") -> str:
    """Return when no query runs any more: why one failed, or "" """
    queries = list(spark.streams.active)
    while queries:
        for query in queries:
            try:
                query.awaitTermination(1)
            except Exception as error:
                return str(error).splitlines()[0]
        queries = list(spark.streams.active)
    return ""


if __name__ == "__main__":
    sys.exit(main())
