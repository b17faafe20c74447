"""The Dockerfiles, without Docker: what they copy exists and is part of the build context, and the images run as an
unprivileged user.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = ("nodeimage/Dockerfile", "operator/Dockerfile", "spark/Dockerfile")
SENT = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_is_sent_to_the_build(name: str) -> None:
    text = (ROOT / name).read_text()
    sources = [source for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", text) for source in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in SENT), f"{source} is in .dockerignore"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_builds_anywhere_and_runs_as_nobody_special(name: str) -> None:
    text = (ROOT / name).read_text()
    assert re.search(r"(?m)^ARG BASE_IMAGE=python:3.11-slim-bookworm\nFROM \$\{BASE_IMAGE\}( AS base)?$", text)
    assert set(re.findall(r"(?m)^FROM (\S+)", text)) <= {"${BASE_IMAGE}", "base"}
    assert re.findall(r"(?m)^USER (.*)$", text) == ["10001:10001"]
    assert not re.search(r"--mount|--chmod|<<", text), "needs BuildKit"
