"""The source of a module is found although its machine code lies beside it."""

from importlib.machinery import EXTENSION_SUFFIXES, PathFinder, SourceFileLoader
from pathlib import Path

import pytest

from headrace.base.pure import Sources


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with one compiled module and a package."""
    for name in ("hot.py", f"hot{EXTENSION_SUFFIXES[0]}", "inner/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_sources_go_before_machine_code(package: Path) -> None:
    compiled = PathFinder.find_spec("headrace.hot", [str(package)])
    assert compiled is not None
    assert str(compiled.origin).endswith(EXTENSION_SUFFIXES[0])
    found = Sources().find_spec("headrace.hot", [str(package)])
    assert found is not None
    assert isinstance(found.loader, SourceFileLoader)
    assert found.origin == str(package / "hot.py")


def test_packages_are_found_as_ever(package: Path) -> None:
    found = Sources().find_spec("headrace.inner", [str(package)])
    assert found is not None
    assert found.submodule_search_locations == [str(package / "inner")]


def test_what_is_not_there_or_of_others_is_left_to_others(package: Path) -> None:
    assert Sources().find_spec("headrace.lacking", [str(package)]) is None
    assert Sources().find_spec("other.hot", [str(package)]) is None
