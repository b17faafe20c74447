"""Every command in README, CONTRIBUTING and docs is one that its program takes; test_sessions_in_docs.py runs those of
ours that need no Kubernetes.

A command line of ours is parsed by the program itself. For others there is what can be known without them: files,
charts and their values, resources, conditions and fields, targets of make, and the options that are used here.
"""

import importlib.util
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import pytest
import typer
import typer.main
import yaml

from headrace.cli.main import app
from headrace.cli.running import USAGE_ERROR
from headrace_operator.plugin.main import app as plugin
from kit.document_sessions import NOT_RUN, typed_commands
from kit.documents import DOCUMENTS, ROOT, Command, all_commands, missing_lines, shape

CRDS: Final = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
OTHER_KINDS: Final = frozenset(
    {"secret", "pvc", "pod", "pods", "lease", "configmap", "service", "services", "statefulset", "namespace", "nodes"}
)
"""Kubernetes' own, as documents name them."""
KUBECTL_OPTIONS: Final = frozenset({"-f", "-n", "-o", "-p", "--for", "--selector", "--timeout", "--type"})
HELM_OPTIONS: Final = frozenset({"--create-namespace", "--namespace", "--reuse-values", "--set", "--wait"})
KAFKA_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "kafka-console-consumer": frozenset({"--bootstrap-server", "--topic", "--consumer.config"}),
    "kafka-features": frozenset({"--bootstrap-server", "--feature"}),
}
"""Options of Kafka's tools that documents use: tests/clients/java runs these tools."""
LEFT_OUT: Final[Mapping[str, str]] = {
    "git": "a release is checked out and pushed by hand",
    "twine": "it publishes a release",
    "helm push": "it publishes a release",
    "py-spy": "a tool that nothing here installs",
    "<install": "stands for what somebody does",
    "export": "a word of the shell; sessions heed it",
    ".": "a word of the shell",
    "VERSION=0.2.0": "a variable of the shell",
    "printf": "a word of the shell; sessions run it",
    "cp": "sessions run it",
}
"""What is not checked here, by how it begins, and why."""

Check = Callable[[Sequence[str]], None]


@cache
def root(program: typer.Typer) -> Any:
    """The command that a program begins with; to make it takes a while."""
    return typer.main.get_command(program)


def parse(program: typer.Typer, words: Sequence[str]) -> None:
    """Have a program of ours read a command line, without running it. Raises UsageError."""
    command = root(program)
    context, rest = None, list(words)
    while True:
        context = command.make_context(rest[0] if context else "headrace", rest[1:], parent=context)
        if not hasattr(command, "commands"):
            return
        rest = [*(getattr(context, "_protected_args", None) or ()), *context.args]
        if not rest:
            return
        command = command.commands[rest[0]]


@cache
def kinds() -> frozenset[str]:
    """All that `kubectl get` takes for one of our resources, and those of Kubernetes that are used here."""
    found = set(OTHER_KINDS)
    for crd in CRDS:
        names = crd["spec"]["names"]
        found |= {names["plural"], names["singular"], *names.get("shortNames", ()), *names.get("categories", ())}
    return frozenset(found)


def schema(kind: str) -> Mapping[str, Any]:
    """Of a resource, by any of its names."""
    (found,) = [
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for crd in CRDS
        if kind in (crd["spec"]["names"]["plural"], crd["spec"]["names"]["singular"])
    ]
    return dict(found)


def conditions() -> set[str]:
    """The types of conditions that the documents explain; operator/tests/test_docs.py holds these to the code."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("kubernetes.md", "jobs.md"))
    return {"Ready"} | set(re.findall(r"^\| `([A-Z]\w+)`", pages, re.MULTILINE))


def options(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}


def has_field(fields: Mapping[str, Any], value: Any) -> bool:
    """Whether a JSON value names properties of a schema alone."""
    if not isinstance(value, dict) or "properties" not in fields:
        return True
    properties = fields["properties"]
    return all(name in properties and has_field(properties[name], each) for name, each in value.items())


def check_headrace(words: Sequence[str]) -> None:
    parse(app, words)


def check_kubectl(words: Sequence[str]) -> None:
    if words[1] == "headrace":
        parse(plugin, words[1:])
        return
    assert options(words) <= KUBECTL_OPTIONS
    verb, rest = words[1], list(words[2:])
    given = dict(itertools.pairwise(rest))
    if verb == "apply":
        assert (ROOT / given["-f"]).is_file()
        return
    named = [
        word for at, word in enumerate(rest) if not word.startswith("-") and (at == 0 or rest[at - 1] not in given)
    ]
    asked = [kind for word in (named or rest[:1])[:2] if "/" in word or word == rest[0] for kind in _kinds_of(word)]
    if "-p" in given and rest[0] == "-n":  # behind xargs, which names the resource
        asked = []
    assert set(asked) <= kinds()
    if "--for" in given:
        assert given["--for"].removeprefix("condition=") in conditions()
    if "-p" in given and asked:
        assert has_field(schema(asked[0]), json.loads(given["-p"]))


def _kinds_of(word: str) -> list[str]:
    return word.partition("/")[0].split(",")


def check_helm(words: Sequence[str]) -> None:
    assert words[1] in ("install", "upgrade")
    assert options(words) <= HELM_OPTIONS
    chart = ROOT / words[3]
    assert (chart / "Chart.yaml").is_file()
    values = yaml.safe_load((chart / "values.yaml").read_text()) if (chart / "values.yaml").exists() else {}
    for at, word in enumerate(words):
        if word == "--set":
            for each in re.split(r",(?![^{]*\})", words[at + 1]):
                path = each.partition("=")[0]
                assert is_value(values, path.split(".")), path


def is_value(values: Any, path: Sequence[str]) -> bool:
    """Whether a chart has such a value; a map that is empty by default takes any key."""
    if not path or values == {}:
        return True
    return isinstance(values, dict) and path[0] in values and is_value(values[path[0]], path[1:])


def check_docker(words: Sequence[str]) -> None:
    given = dict(itertools.pairwise(words))
    assert (ROOT / (given.get("-f") or given["--file"])).is_file()
    assert words[-1] == "."


def check_kind(words: Sequence[str]) -> None:
    assert words[1:3] == ["load", "docker-image"]
    assert {word.split("/")[1].split(":")[0] for word in words[3:]} == {"node", "operator", "spark"}


def check_make(words: Sequence[str]) -> None:
    text = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    for word in words[1:]:
        name, equals, _ = word.partition("=")
        assert f"$({name})" in text or f"$(if $({name})" in text if equals else f"\n{name}:" in text, word


def check_python(words: Sequence[str]) -> None:
    if words[1] != "-m":
        assert (ROOT / words[1]).is_file()
    elif (ROOT / words[2].replace(".", "/")).with_suffix(".py").exists():
        assert options(words[3:]) <= set(re.findall(r'"(--[a-z-]+)"', (ROOT / "bench" / "run.py").read_text())) | {
            "--help"
        }
    else:
        assert importlib.util.find_spec(words[2]) is not None


def check_pytest(words: Sequence[str]) -> None:
    assert (ROOT / words[1]).exists()
    assert options(words) <= {"-k", "-n"}
    if "-k" in words:
        assert f"{words[words.index('-k') + 1]}" in (ROOT / words[1]).read_text()


def check_pip(words: Sequence[str]) -> None:
    if words[1:] == ["wheel", "--no-deps", "."]:
        return
    assert words[1] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in re.findall(r"^\.\[(\w+)\]$", words[2]):
        assert name in extras


def check_kafka(words: Sequence[str]) -> None:
    assert options(words) <= KAFKA_OPTIONS[words[0].removesuffix(".sh")]


def check_xargs(words: Sequence[str]) -> None:
    check(words[words.index("kubectl") :])


CHECKS: Final[Mapping[str, Check]] = {
    "headrace": check_headrace,
    "kubectl": check_kubectl,
    "helm": check_helm,
    "docker": check_docker,
    "kind": check_kind,
    "make": check_make,
    ".venv/bin/python": check_python,
    ".venv/bin/pytest": check_pytest,
    ".venv/bin/pip": check_pip,
    "pip": check_pip,
    "kafka-console-consumer": check_kafka,
    "kafka-features.sh": check_kafka,
    "xargs": check_xargs,
}
"""By program."""


def check(words: Sequence[str]) -> None:
    """Raises where a program would refuse its command line, or is not known."""
    while re.fullmatch(r"[A-Z][A-Z_]*=\S*", words[0]) and len(words) > 1:
        words = words[1:]
    if words[0] in LEFT_OUT or " ".join(words[:2]) in LEFT_OUT:
        return
    CHECKS[words[0]](words)


def check_line(command: Command) -> None:
    """Raises where one of its programs would refuse what it is given."""
    for words in command.parts:
        check(words)


@pytest.mark.parametrize(
    "command", [pytest.param(command, id=f"{document}: {command.line}"[:100]) for document, command in all_commands()]
)
def test_a_command_is_one_that_its_program_takes(command: Command) -> None:
    check_line(command)


@pytest.mark.parametrize(
    "line",
    [
        "headrace stream create",
        "headrace stream create /factory --ttl",
        "headrace topic list --nonsense",
        "headrace up --nodes many",
        "kubectl headrace drain",
        "kubectl get streemclusters",
        "kubectl wait stream/s --for condition=Rady",
        'kubectl patch streamcluster NAME --type merge -p \'{"spec": {"versoin": "1"}}\'',
        "kubectl apply -f docs/examples/none.yaml",
        "helm install headrace charts/none",
        "helm upgrade headrace charts/headrace --set metrics.podMonitors.enabled=true",
        "docker build -f Dockerfile .",
        "make everything",
        "make simulate SAD=1",
        ".venv/bin/pytest nodeimage/tests/test_none.py",
        ".venv/bin/python -m bench.run --slowly",
        "pip install '.[sparks]'",
        "kafka-features.sh --nonsense",
        "rpk topic list",
    ],
)
def test_a_command_that_its_program_would_refuse_is_found(line: str) -> None:
    with pytest.raises((AssertionError, KeyError, USAGE_ERROR)):
        check_line(Command(line))


def inline() -> Iterator[tuple[str, list[str]]]:
    """Commands of ours within the text, which may leave arguments out."""
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"`(?:kubectl exec [^`]*? -- )?(headrace [^`]+|kubectl headrace [^`]+)`", text):
            try:
                yield document.name, shlex.split(re.sub(r"\s+", " ", line))
            except ValueError:
                yield document.name, line.split()


def test_commands_within_the_text_have_the_options_that_are_shown() -> None:
    shown = list(inline())
    assert len(shown) > 100
    wrong = []
    for document, words in shown:
        command = root(plugin if words[0] == "kubectl" else app)
        rest = words[2 if words[0] == "kubectl" else 1 :]
        while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
            if rest[0] not in command.commands:
                if rest[0].isupper():
                    break  # a placeholder
                wrong.append((document, words))
                break
            command = command.commands[rest.pop(0)]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if not options(rest) <= known | {"--help", "-h"}:
            wrong.append((document, words))
    assert wrong == []


def leaves(program: typer.Typer, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command of a program, without its groups."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, each in getattr(command, "commands", {}).items():
            if hasattr(each, "commands"):
                yield from walk(each, (*path, name))
            else:
                yield " ".join((*path, name)), each

    yield from walk(root(program), path)


HELPED: Final = [*leaves(app, "headrace"), *leaves(plugin, "kubectl", "headrace")]
NARROW: Final = 57
"""Characters that a list of commands has for each, in a terminal of 80 columns."""


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in HELPED])
def test_each_command_says_in_a_line_what_it_does_and_gives_an_example(name: str, command: Any) -> None:
    first = command.help.split("\n\n")[0]
    assert first[0].isupper()
    assert "..." not in command.get_short_help_str(NARROW), f"{first!r} has more than {NARROW} characters"
    assert "\n" not in first
    examples = command.help.partition("\b\nExample")[2].splitlines()[1:]
    assert examples
    for line in examples:
        *_, words = Command(line.strip()).parts
        if "--" in words:  # kubectl exec ... -- headrace ...
            words = words[words.index("--") + 1 :]
        assert " ".join(words).startswith(name), line
        check(words)


def test_each_group_of_commands_says_in_a_line_what_it_does() -> None:
    groups = [each for each in root(app).commands.values() if hasattr(each, "commands")]
    assert len(groups) > 5
    assert [each.name for each in groups if "..." in each.get_short_help_str(NARROW)] == []


def test_the_table_of_commands_has_them_all() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    (body,) = re.findall(r"^## All commands$(.*)", text, re.MULTILINE | re.DOTALL)
    shown = set()
    for row in re.findall(r"^\| (`headrace .*?) \|", body, re.MULTILINE):
        group = ""
        for name in re.findall(r"`([^`]+)`", row):
            words = name.split()
            if words[0] == "headrace":
                group = " ".join(words[:-1])
                shown.add(name)
            else:
                shown.add(f"{group} {name}")
    assert shown == {name for name, _ in leaves(app, "headrace")}


def test_every_session_is_run_or_says_why_not() -> None:
    """A block in which `headrace` is typed is run by a session; what is only checked here says why."""
    typed = {
        (document, command.line)
        for document, command in all_commands()
        if any(words[0] == "headrace" for words in command.parts)
    }
    run = {(document, command.line) for document, command in typed_commands()}
    assert {line for line in NOT_RUN if line not in {each for _, each in typed}} == set()
    assert sorted(typed - run - {(document, line) for document, line in typed if line in NOT_RUN}) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3 records acknowledged by /f:press-7 in 1.0 s", "# records acknowledged by # in #"),
        ("container  kind     state", "container kind state"),
        ("   1  127.0.0.1:9092  up  controller, catalog  64.0 MiB", "# up controller catalog #"),
    ],
)
def test_a_line_has_the_shape_of_one_with_other_numbers(line: str, words: str) -> None:
    assert shape(line) == words


def test_what_is_shown_and_not_printed_is_found() -> None:
    printed = ["made /a", "", "node  state", "   1  up", "   2  down"]
    assert missing_lines(["made /a", "...", "node  state", "   7  drained"], printed) == []
    assert missing_lines(["made /b"], printed) == ["made /b"]
    assert missing_lines(["node  status", "   1  up  more"], printed) == ["node  status", "   1  up  more"]
    assert missing_lines(['{"id": 1, "of": [{"a": "x"}]}'], ['{"id": 2, "of": [{"a": "y", "b": 1}]}']) == []
    assert missing_lines(['{"id": 1}'], ['{"identity": 2}']) == ['{"id": 1}']


def test_what_kubectl_gets_is_shown_with_its_columns() -> None:
    """Of the resources of docs/kubernetes.md: heads are those of the CRDs, as kubectl writes them."""
    heads = {}
    for crd in CRDS:
        columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
        named = ["NAME", *(column["name"].upper() for column in columns if not column.get("priority"))]
        heads[f"{crd['spec']['names']['singular']}.{crd['spec']['group']}"] = named
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    listing = next(
        command.shown
        for document, command in all_commands()
        if document == "docs/kubernetes.md" and command.line == "kubectl get headrace" and command.shown
    )
    seen = set()
    head: list[str] = []
    for line in listing:
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] == "NAME":
            head = cells
        elif line.strip() not in ("", "..."):
            kind, _, name = cells[0].partition("/")
            assert name
            assert head == heads[kind], line
            seen.add(kind)
    assert len(seen) >= 5, text
