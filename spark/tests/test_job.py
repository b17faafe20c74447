"""A job's definition, as its driver reads it."""

import json
from pathlib import Path

import pytest

from headrace_spark.job import Autoscale, Job, read
from headrace_spark.job.ends import JobError


def test_a_definition_is_read_and_what_is_new_in_it_left_alone() -> None:
    job = read(
        json.dumps(
            {
                "name": "ns.j", "bootstrap": "a:1", "checkpoint": "/c/", "later": 1,
                "inputs": [{"stream": "/s", "name": "left", "topics": ["t"], "options": {"maxOffsetsPerTrigger": "5"}}],
                "output": {"stream": "/o"}, "autoscale": {"min": 1, "max": 2, "lag_s": 9},
            }
        )
    )  # fmt: skip
    assert job.reading("left") == {
        "bootstrap": "a:1", "stream": "/s", "topics": "t", "startingOffsets": "earliest", "group": "ns.j.left",
        "maxOffsetsPerTrigger": "5",
    }  # fmt: skip
    assert job.place("output") == "/c/output"
    assert job.autoscale == Autoscale(1, 2, 9)


def test_what_the_job_does_not_have_is_said() -> None:
    job = Job("j", "a:1", "/c")
    with pytest.raises(JobError, match=r"the job has no input input \(it has: none\)"):
        job.reading()
    with pytest.raises(JobError, match="the job has no output"):
        job.write(None)  # type: ignore[arg-type]


def test_who_a_job_is_stands_in_the_file_of_its_credentials(tmp_path: Path) -> None:
    job = Job("j", "a:1", "/c", credentials=str(tmp_path))
    assert job.options("/s") == {"bootstrap": "a:1", "stream": "/s"}, "of a cluster that asks nobody"
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=s3cret\n")
    assert job.options("/s") == {"bootstrap": "a:1", "stream": "/s", "propertiesFile": str(file)}
