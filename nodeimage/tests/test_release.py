"""A release: one version everywhere, a change log that says what is new, and nothing changed where it is refused."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from headrace import __version__
from kit.gate_scripts import gate_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return gate_script("release")


@pytest.fixture
def checkout(script: ModuleType, tmp_path: Path) -> Path:
    """A repository with the files that name the version."""
    root = tmp_path / "checkout"
    for name in (*sorted({place.file for place in script.PLACES}), script.CHANGELOG):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("config", "user.name", "a"),
        ("config", "user.email", "a@b"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "all"),
    ):
        subprocess.run(("git", *command), cwd=root, check=True)
    (root / script.CHANGELOG).write_text("# Changes\n\n## Unreleased\n\n- new\n\n## 0.0.1\n\n- all\n")
    script.git(root, "commit", "--quiet", "--all", "--message", "new")
    return root


def test_every_place_names_the_version(script: ModuleType) -> None:
    assert {place: script.version_at(ROOT, place) for place in script.PLACES} == dict.fromkeys(
        script.PLACES, __version__
    )


def test_no_level_is_of_a_version_that_is_still_to_come(script: ModuleType) -> None:
    rows = re.findall(r"^\| \d+ \| ([\d.]+) \|", (ROOT / "docs" / "upgrades.md").read_text(), re.MULTILINE)
    levels = re.findall(r"^    \d+ +([\d.]+) ", (ROOT / "nodeimage/headrace/base/levels.py").read_text(), re.MULTILINE)
    assert rows == levels != []
    assert all(script.parts(each) <= script.parts(__version__) for each in rows)


def test_the_change_log_knows_the_version_or_what_it_will_be(script: ModuleType) -> None:
    text = (ROOT / script.CHANGELOG).read_text()
    headings = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert headings[0] == "Unreleased" or script.parts(headings[0]) < script.parts(__version__)
    numbers = [script.parts(each) for each in headings if each != "Unreleased"]
    assert numbers == sorted(numbers, reverse=True)


def test_a_release_is_a_commit_with_a_tag_and_one_more_that_begins_the_next_version(
    script: ModuleType, checkout: Path
) -> None:
    begun = script.following(__version__)
    script.check(checkout, __version__, begun)
    script.record(checkout, __version__, begun, "2027-01-02")
    assert script.git(checkout, "log", "--format=%s", "-2").splitlines() == [f"Begin {begun}", f"Release {__version__}"]
    assert script.git(checkout, "status", "--porcelain") == ""
    assert {script.version_at(checkout, place) for place in script.PLACES} == {begun}
    at_tag = script.git(checkout, "show", f"v{__version__}:{script.CODE.file}")
    assert f'"{__version__}"' in at_tag
    changes = script.git(checkout, "show", f"v{__version__}:{script.CHANGELOG}")
    assert f"## Unreleased\n\n## {__version__} (2027-01-02)\n\n- " in changes
    with pytest.raises(script.Refused, match="says nothing under"):
        script.check(checkout, begun, script.following(begun))


@pytest.mark.parametrize("refused", ["Release", "Begin"])
def test_a_release_whose_commit_fails_leaves_all_as_it_was(script: ModuleType, checkout: Path, refused: str) -> None:
    hook = checkout / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\n! grep -q "^{refused} " "$1"\n')
    hook.chmod(0o755)
    before = script.git(checkout, "rev-parse", "HEAD")
    with pytest.raises(subprocess.CalledProcessError):
        script.record(checkout, __version__, script.following(__version__), "2027-01-02")
    assert script.git(checkout, "rev-parse", "HEAD") == before
    assert script.git(checkout, "status", "--porcelain") == ""
    assert script.git(checkout, "tag") == ""
    hook.unlink()
    script.record(checkout, __version__, script.following(__version__), "2027-01-02")


def test_an_older_line_is_released_after_a_newer_one(script: ModuleType, checkout: Path) -> None:
    """Its tag is of another branch."""
    script.git(checkout, "checkout", "--quiet", "-b", "newer")
    script.git(checkout, "commit", "--quiet", "--allow-empty", "--message", "newer")
    script.git(checkout, "tag", "v99.0.0")
    script.git(checkout, "checkout", "--quiet", "main")
    script.check(checkout, __version__, script.following(__version__))
    script.git(checkout, "merge", "--quiet", "newer")
    with pytest.raises(script.Refused, match="is not above"):
        script.check(checkout, __version__, script.following(__version__))


def _uncommitted(script: ModuleType, root: Path) -> None:
    (root / "stray").touch()


def _released_before(script: ModuleType, root: Path) -> None:
    script.git(root, "tag", f"v{__version__}")


def _other_chart(script: ModuleType, root: Path) -> None:
    chart = root / "charts/headrace/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"appVersion: {__version__}", "appVersion: 0.0.1"))
    script.git(root, "commit", "--quiet", "--all", "--message", "other")


def _nothing_new(script: ModuleType, root: Path) -> None:
    (root / script.CHANGELOG).write_text("# Changes\n\n## Unreleased\n\n## 0.1.0\n\n- all\n")
    script.git(root, "commit", "--quiet", "--all", "--message", "nothing")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_uncommitted, "not committed"),
        (_released_before, "is released: there is a tag"),
        (_other_chart, "Chart.yaml names 0.0.1"),
        (_nothing_new, "says nothing under"),
    ],
)
def test_what_cannot_be_released_is_refused(
    script: ModuleType, checkout: Path, spoil: Callable[[ModuleType, Path], None], said: str
) -> None:
    spoil(script, checkout)
    before = script.git(checkout, "rev-parse", "HEAD"), script.git(checkout, "tag")
    with pytest.raises(script.Refused, match=said):
        script.check(checkout, __version__, script.following(__version__))
    assert (script.git(checkout, "rev-parse", "HEAD"), script.git(checkout, "tag")) == before


@pytest.mark.parametrize("begun", ["0.1", "next", "0.0.9", __version__])
def test_the_next_version_is_above(script: ModuleType, checkout: Path, begun: str) -> None:
    with pytest.raises(script.Refused, match="has to be above"):
        script.check(checkout, __version__, begun)
