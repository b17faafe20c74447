"""Makes a release: `make release`, or only what is made of one: `make artifacts`. docs/releasing.md has how.

    .venv/bin/python .ci/release.py [--next X.Y.Z]     the version that the code names, and then that of the next one
    .venv/bin/python .ci/release.py --artifacts        wheel, charts and images of the commit that is checked out

A release is a commit and a tag `vX.Y.Z`; nothing is pushed. They come last, once all is built: whatever is refused, or
fails, leaves the repository as it was, and is run again.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = "dist"
CHANGELOG: Final = "docs/CHANGELOG.md"
UNRELEASED: Final = "## Unreleased"
IMAGES: Final = {"node": "nodeimage/Dockerfile", "operator": "operator/Dockerfile", "spark": "spark/Dockerfile"}
CHARTS: Final = ("charts/headrace-crds", "charts/headrace")
BUILT_CHARTS: Final = f"{os.environ.get('XDG_CACHE_HOME', Path.home() / '.cache')}/headrace/charts"
"""Where .ci/charts has the helm that it has built."""
VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


class Place(NamedTuple):
    """Where the version stands: a file, and what is around it there."""

    file: str
    before: str
    after: str = ""


CODE: Final = Place("nodeimage/headrace/__init__.py", '__version__ = "', '"')
"""Where it is taken from: pyproject.toml, and all that runs, ask there."""
PLACES: Final = (
    CODE,
    *(Place(f"{chart}/Chart.yaml", f"\n{key}: ") for chart in CHARTS for key in ("version", "appVersion")),
    Place("docs/examples/streamcluster.yaml", "\n  version: "),
    Place("docs/examples/streamcluster.yaml", "headrace/spark:"),
    Place("docs/kubernetes.md", "VERSION="),
)


class Refused(Exception):
    """A release cannot be made, and nothing was changed."""


# --- versions


def version_at(root: Path, place: Place) -> str:
    """The version that stands there. Raises Refused where none does."""
    text = (root / place.file).read_text()
    found = re.search(re.escape(place.before) + f"({VERSION.pattern})" + re.escape(place.after), text)
    if found is None:
        raise Refused(f"{place.file} names no version behind {place.before.strip()!r}")
    return found[1]


def write_version(root: Path, version: str) -> list[str]:
    """Have every place name a version; the files that there are."""
    for place in PLACES:
        file = root / place.file
        text = file.read_text()
        file.write_text(text.replace(place.before + version_at(root, place), place.before + version, 1))
    return sorted({place.file for place in PLACES})


def parts(version: str) -> tuple[int, ...]:
    """For comparing."""
    return tuple(int(part) for part in version.split("."))


def following(version: str) -> str:
    """The version that is begun after a release, unless another one is said."""
    major, minor, _ = parts(version)
    return f"{major}.{minor + 1}.0"


# --- the change log


def released(text: str, version: str, day: str) -> str:
    """The change log with what was not released under the version's name. Raises Refused where that is nothing."""
    _, found, rest = text.partition(f"{UNRELEASED}\n")
    if not found or not rest.partition("\n## ")[0].strip():
        raise Refused(f"{CHANGELOG} says nothing under {UNRELEASED!r}: write what is new for who upgrades")
    return text.replace(f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} ({day})\n", 1)


# --- git


def git(root: Path, *arguments: str) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def check(root: Path, version: str, begun: str) -> None:
    """Raise Refused where the version cannot be released, or the next one not be begun."""
    if git(root, "status", "--porcelain"):
        raise Refused("there are changes that are not committed: a release is of a commit")
    for place in PLACES:
        if (there := version_at(root, place)) != version:
            raise Refused(f"{place.file} names {there}, and {CODE.file} {version}")
    if git(root, "tag", "--list", f"v{version}"):
        raise Refused(f"{version} is released: there is a tag v{version}")
    tags = [tag.removeprefix("v") for tag in git(root, "tag", "--list", "v*", "--merged", "HEAD").split()]
    last = max((tag for tag in tags if VERSION.fullmatch(tag)), key=parts, default="0.0.0")
    if parts(version) <= parts(last):
        raise Refused(f"{version} is not above {last}, which is released: {CODE.file} names the version to release")
    released((root / CHANGELOG).read_text(), version, "today")
    if not VERSION.fullmatch(begun) or parts(begun) <= parts(version):
        raise Refused(f"the next version, {begun}, has to be above {version}, as X.Y.Z")


def record(root: Path, version: str, begun: str, day: str) -> None:
    """The release's commit and tag, and the commit from which on the code is of the next version; or none of them.

    Raises CalledProcessError, with the checkout as it was (`check` has seen to it that nothing else was changed).
    """
    before = git(root, "rev-parse", "HEAD")
    log = root / CHANGELOG
    try:
        log.write_text(released(log.read_text(), version, day))
        git(root, "commit", "--quiet", "--message", f"Release {version}", CHANGELOG)
        git(root, "tag", "--annotate", f"v{version}", "--message", f"Headrace {version}")
        git(root, "commit", "--quiet", "--message", f"Begin {begun}", *write_version(root, begun))
    except subprocess.CalledProcessError:
        git(root, "reset", "--quiet", "--hard", before)
        if git(root, "tag", "--list", f"v{version}"):
            git(root, "tag", "--delete", f"v{version}")
        raise


# --- what is made of it


def artifacts(root: Path, version: str) -> Iterator[str]:
    """Make the wheel, the source archive, the charts and the images; a line for each, also for what was left out."""
    dist = root / DIST
    build = (sys.executable, "-m", "hatchling", "build", "--directory", str(dist))
    run(root, *build)
    yield f"{DIST}/headrace-{version}-py3-none-any.whl, {DIST}/headrace-{version}.tar.gz"
    run(root, *build, "--target", "wheel", HEADRACE_COMPILE="auto")
    compiled = sorted({each.name for each in dist.glob(f"headrace-{version}-cp*.whl")})
    yield ", ".join(f"{DIST}/{name}" for name in compiled) or (
        "LEFT OUT: a compiled wheel, for want of a C compiler and Python's headers here: HEADRACE_COMPILE=1 pip wheel ."
    )
    helm = os.environ.get("HEADRACE_HELM") or shutil.which("helm") or shutil.which("helm", path=BUILT_CHARTS)
    for chart in CHARTS:
        if helm is None:
            yield f"LEFT OUT: {chart}, as there is no helm here: helm package {chart} --destination {DIST}"
        else:
            run(root, helm, "package", chart, "--destination", str(dist))
            yield f"{DIST}/{Path(chart).name}-{version}.tgz"
    docker = next(filter(answers, map(shutil.which, ("docker", "podman"))), None)
    more = shlex.split(os.environ.get("DOCKER_BUILD_ARGUMENTS", ""))
    for name, dockerfile in IMAGES.items():
        command = ["build", "--file", dockerfile, "--tag", f"headrace/{name}:{version}", *more, "."]
        if docker is None:
            yield f"LEFT OUT: headrace/{name}:{version}, as no docker answers here: docker {' '.join(command)}"
        else:
            run(root, docker, *command)
            yield f"headrace/{name}:{version}, for this machine's architecture"


def answers(docker: str | None) -> bool:
    """Whether it is there, and so is its daemon."""
    return docker is not None and subprocess.run([docker, "info"], capture_output=True).returncode == 0


def run(root: Path, *command: str, **environment: str) -> None:
    """Run a command, whose output is seen; with more in its environment."""
    print(f"== {' '.join((*(f'{name}={value}' for name, value in environment.items()), *command))}", flush=True)
    subprocess.run(command, cwd=root, env={**os.environ, **environment}, check=True)


def to_publish(version: str) -> Iterator[str]:
    """What a person does then, since it cannot be taken back."""
    yield f"git push origin HEAD v{version}"
    yield f"twine upload {DIST}/headrace-{version}-py3-none-any.whl {DIST}/headrace-{version}.tar.gz"
    for chart in CHARTS:
        yield f"helm push {DIST}/{Path(chart).name}-{version}.tgz oci://REGISTRY/charts"
    for name, dockerfile in IMAGES.items():
        yield (
            f"docker buildx build --platform linux/amd64,linux/arm64 --file {dockerfile}"
            f" --tag REGISTRY/headrace/{name}:{version} --push ."
        )


def main() -> int:
    """Exit code 0 if all was made, or was left out for want of a tool."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__.partition("\n")[0])
    parser.add_argument("--artifacts", action="store_true", help="no commit and no tag: only what is made of them")
    parser.add_argument("--next", default="", help="the version that is begun then; X.Y+1.0 if none is said")
    asked = parser.parse_args()
    version = version_at(ROOT, CODE)
    begun = asked.next or following(version)
    try:
        if not asked.artifacts:
            check(ROOT, version, begun)
        made = list(artifacts(ROOT, version))
        if not asked.artifacts:
            record(ROOT, version, begun, datetime.now(UTC).strftime("%Y-%m-%d"))
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(error.cmd)} ended with {error.returncode}; nothing was released", file=sys.stderr)
        return 1
    print(f"\nmade of {version}:", *made, sep="\n  ")
    print("\nto publish it, with a tag's commit checked out for the images:", *to_publish(version), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
