"""Makes a release: `make release`, or only its artifacts: `make artifacts`. See docs/releasing.md.

    .venv/bin/python .ci/release.py [--next X.Y.Z]     releases the code's version, then begins the next
    .venv/bin/python .ci/release.py --artifacts        wheel, charts and images of the checked-out commit

A release is a commit and a tag `vX.Y.Z`; nothing is pushed. They are created last, once everything is built: a release
that is refused, or fails, leaves the repository as it was, and can be repeated.
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
"""Where .ci/charts puts the helm that it has built."""
VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


class Place(NamedTuple):
    """A place of the version number: a file, and the text around the number."""

    file: str
    before: str
    after: str = ""


CODE: Final = Place("nodeimage/headrace/__init__.py", '__version__ = "', '"')
"""Where the version is defined: pyproject.toml and the running code read it there."""
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
    """Return the version at a place. Raises Refused if there is none."""
    text = (root / place.file).read_text()
    found = re.search(re.escape(place.before) + f"({VERSION.pattern})" + re.escape(place.after), text)
    if found is None:
        raise Refused(f"{place.file} names no version after {place.before.strip()!r}")
    return found[1]


def write_version(root: Path, version: str) -> list[str]:
    """Write a version at every place; return the changed files."""
    for place in PLACES:
        file = root / place.file
        text = file.read_text()
        file.write_text(text.replace(place.before + version_at(root, place), place.before + version, 1))
    return sorted({place.file for place in PLACES})


def parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison."""
    return tuple(int(part) for part in version.split("."))


def following(version: str) -> str:
    """Return the version that is begun after a release by default."""
    major, minor, _ = parts(version)
    return f"{major}.{minor + 1}.0"


# --- the change log


def released(text: str, version: str, day: str) -> str:
    """Return the change log with the unreleased entries under the version's name. Raises Refused if there are none."""
    _, found, rest = text.partition(f"{UNRELEASED}\n")
    if not found or not rest.partition("\n## ")[0].strip():
        raise Refused(f"{CHANGELOG} says nothing under {UNRELEASED!r}: write what is new for those who upgrade")
    return text.replace(f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} ({day})\n", 1)


# --- git


def git(root: Path, *arguments: str) -> str:
    """Return git's output."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def check(root: Path, version: str, begun: str) -> None:
    """Raise Refused if the version cannot be released, or the next one cannot be begun."""
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
    """Create the release's commit and tag, and the commit that begins the next version; or none of them.

    Raises CalledProcessError, with the checkout as it was (`check` has ensured that there were no other changes).
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


# --- artifacts


def artifacts(root: Path, version: str) -> Iterator[str]:
    """Build the wheel, source archive, charts and images; yield a line for each, also for those left out."""
    dist = root / DIST
    build = (sys.executable, "-m", "hatchling", "build", "--directory", str(dist))
    run(root, *build)
    yield f"{DIST}/headrace-{version}-py3-none-any.whl, {DIST}/headrace-{version}.tar.gz"
    run(root, *build, "--target", "wheel", HEADRACE_COMPILE="auto")
    compiled = sorted({each.name for each in dist.glob(f"headrace-{version}-cp*.whl")})
    yield ", ".join(f"{DIST}/{name}" for name in compiled) or (
        "LEFT OUT: a compiled wheel, as there is no C compiler or no Python header here: HEADRACE_COMPILE=1 pip wheel ."
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
    """Return whether docker is installed, and its daemon answers."""
    return docker is not None and subprocess.run([docker, "info"], capture_output=True).returncode == 0


def run(root: Path, *command: str, **environment: str) -> None:
    """Run a command with additional environment variables; its output is shown."""
    print(f"== {' '.join((*(f'{name}={value}' for name, value in environment.items()), *command))}", flush=True)
    subprocess.run(command, cwd=root, env={**os.environ, **environment}, check=True)


def to_publish(version: str) -> Iterator[str]:
    """Yield the commands by which a person publishes the release, since that cannot be undone."""
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
    """Return exit code 0 if everything was made, or was left out for lack of a tool."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__.partition("\n")[0])
    parser.add_argument("--artifacts", action="store_true", help="no commit and no tag: only build what is published")
    parser.add_argument("--next", default="", help="the version to begin after it; by default X.Y+1.0")
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
    print(f"\nbuilt from {version}:", *made, sep="\n  ")
    print("\nto publish it, with the tag's commit checked out for the images:", *to_publish(version), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
