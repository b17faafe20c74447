"""Every msgspec decoder is made once, as its module is loaded.

msgspec learns a class at its first use, and not safely: two threads that come first at the same time end the process
by SIGSEGV. Modules are loaded by one thread. `msgspec.convert` has no decoder, so what it converts to must have been
learnt before; the classes are listed here.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from headrace.admin import (
    access,
    cluster,
    cluster_security,
    containers,
    feature_levels,
    group_lag,
    nodes,
    streams,
    topics,
    users,
    volumes,
)
from headrace.links import link_admin
from headrace.links.serving import homes, source_apis
from headrace.links.serving import topics as link_topics
from headrace.partitions.stream_policies import PolicyChanges, PolicyFields, StreamPolicy
from headrace_operator.kinds.stream import Streams
from headrace_operator.kinds.topic import Topics
from headrace_operator.kinds.volume import Volumes
from headrace_operator.specs import ClusterSpec, JobSpec, UserSpec, VolumeSpec

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("nodeimage/headrace", "operator/headrace_operator", "spark/headrace_spark")
SOURCES: Final = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

ADMIN_CALLS: Final = (
    access,
    cluster_security,
    users,
    cluster,
    containers,
    feature_levels,
    group_lag,
    nodes,
    streams,
    topics,
    volumes,
    link_admin,
    homes,
    source_apis,
    link_topics,
)
CONVERTED_TO: Final[Mapping[str, Sequence[type[msgspec.Struct]]]] = {
    "ClusterSpec": [ClusterSpec],
    "JobSpec": [JobSpec],
    "PolicyChanges": [PolicyChanges],
    "PolicyFields": [PolicyFields],
    "StreamPolicy": [StreamPolicy],
    "UserSpec": [UserSpec],
    "VolumeSpec": [VolumeSpec],
    "method.params": [params for module in ADMIN_CALLS for params in module.TAKEN],
    "self.spec": [kind.spec for kind in (Volumes, Streams, Topics)],
}
"""By what stands in the call: the classes that it may be. All have been learnt once the modules are loaded."""
ALLOWED: Final[Mapping[str, str]] = {
    "nodeimage/headrace/admin/admin_api.py: self._decoders[name] = msgspec.msgpack.Decoder(method.params)": (
        "of the classes of `method.params` below, which were learnt as their modules were loaded"
    ),
}
"""By path and line's text, such as `nodeimage/headrace/x.py: decoder = Decoder(T)`: why it cannot be otherwise."""


def late(source: str) -> list[tuple[int, str]]:
    """Line and fault of each call that has msgspec learn a class when its module was loaded already."""
    tree = ast.parse(source)
    aliases = {
        name.asname: name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    }
    faults = {(call.lineno, fault) for call in deferred(tree) if (fault := _fault(call, aliases)) is not None}
    return sorted(faults)


def deferred(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls within functions; decorators, defaults and annotations are not."""
    for function in ast.walk(tree):
        body: Sequence[ast.AST] = []
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            body = function.body
        elif isinstance(function, ast.Lambda):
            body = [function.body]
        for statement in body:
            yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _fault(call: ast.Call, aliases: Mapping[str | None, str]) -> str | None:
    name, *others = (_last_name(each, aliases) for each in (call.func, *call.args))
    given = {each.arg: each.value for each in call.keywords}
    if name == "Decoder":
        return "makes a Decoder"
    if "type" in given and "decode" in (name, *others):  # among the arguments: of a partial
        return "decodes with type="
    wanted = given.get("type") or (call.args[1] if len(call.args) > 1 else None)
    if name == "convert" and wanted is not None and ast.unparse(wanted) not in CONVERTED_TO:
        return f"converts to {ast.unparse(wanted)}"
    return None


def _last_name(called: ast.AST, aliases: Mapping[str | None, str]) -> str:
    match called:
        case ast.Attribute(attr=name):
            return name
        case ast.Name(id=name):
            return aliases.get(name, name)
        case ast.Subscript(value=value):
            return _last_name(value, aliases)
        case _:
            return ""


def unlearnt(classes: Sequence[type[msgspec.Struct]]) -> list[str]:
    """Those that msgspec would look at now for the first time. What it has learnt it does not read again."""
    found = []
    for each in classes:
        each.__annotations__ = {"field": "there_is_no_such_type"}
        try:
            msgspec.convert({}, each)
        except NameError:
            found.append(each.__name__)
        except msgspec.ValidationError:
            pass
    return found


def test_no_decoder_is_made_after_its_module_was_loaded() -> None:
    found = []
    for path in SOURCES:
        source = path.read_text()
        lines = source.splitlines()
        for number, fault in late(source):
            line = f"{path.relative_to(ROOT)}: {lines[number - 1].strip()}"
            if line not in ALLOWED:
                found.append(f"{path.relative_to(ROOT)}:{number} {fault}")
    assert len(SOURCES) > 100
    assert not found, "make the Decoder once, at the module's top level:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "body",
    [
        "msgspec.json.Decoder(T)",
        "msgspec.msgpack.Decoder[T](T)",
        "D(T)",
        "msgspec.json.decode(raw, type=T)",
        "partial(msgspec.json.decode, type=T)",
        "msgspec.convert(raw, T)",
        "msgspec.convert(raw, type=T)",
    ],
)
def test_a_late_decoder_is_found(body: str) -> None:
    imports = "from msgspec.json import Decoder as D\n"
    assert len(late(f"{imports}def f(raw):\n    return {body}")) == 1
    assert len(late(f"{imports}class C:\n    async def f(self, raw):\n        return lambda: {body}")) == 1
    assert len(late(f"{imports}f = lambda raw: {body}")) == 1
    assert not late(f"{imports}f = {body}")
    assert not late(f"{imports}def f(raw={body}): ...")


@pytest.mark.parametrize(
    "body", ["raw.decode()", "msgspec.json.decode(raw)", "decoder.decode(raw)", "msgspec.convert(raw, ClusterSpec)"]
)
def test_what_learns_no_class_is_let_pass(body: str) -> None:
    assert not late(f"def f(raw):\n    return {body}")


def test_what_is_converted_to_was_learnt_as_modules_were_loaded() -> None:
    """In a process of its own: here other tests may have been first."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['NobodyKnows']\n"), done.stdout + done.stderr


class NobodyKnows(msgspec.Struct):
    """What the test must find."""


if __name__ == "__main__":
    print(unlearnt([*(each for classes in CONVERTED_TO.values() for each in classes), NobodyKnows]))
