"""The sections of README and docs with sessions that tests type, in their order, and the lines that are typed
differently.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from kit.documents import ROOT, Block, Command, sections

README: Final = ("README.md", "Quickstart on one machine, secure")
SECURITY: Final = tuple(
    ("docs/security.md", title)
    for title in ("Set up in three commands (embedded)", "Users", "Access expressions", "The command line")
)
ONE_NODE, CLUSTER = (("docs/command-line.md", title) for title in ("One node", "A cluster"))
PROGRAM: Final = ("docs/protocol.md", "Clients")
START, VOLUMES, LIVE, PROBE, GLANCE, NODES, BACKUPS = OPERATIONS = tuple(
    ("docs/operations.md", title)
    for title in ("Starting and stopping", "Volumes", "Live", "A probe", "The cluster at a glance", "Nodes", "Backups")
)
"""In the order in which they are typed."""
LINK, HOME = (("docs/links.md", title) for title in ("Making a link", "Moving a home"))
LEVEL: Final = (("docs/upgrades.md", "What happens, in order"), ("docs/upgrades.md", "Embedded"))
RUNBOOKS: Final = tuple(
    (f"docs/runbooks/{path.name}", "How to look") for path in sorted((ROOT / "docs" / "runbooks").glob("Headrace*.md"))
)

NOT_RUN: Final[Mapping[str, str]] = {
    "headrace link create --source north:9093/plant/flow --credentials north.properties --direction both "
    "--reach plant:9093 --reverse-credentials outpost.properties": "needs two secured clusters: tests/links has them",
    "headrace stream move-home /factory/sensors --to CLUSTER_ID": "needs links both ways: tests/links has them",
    "headrace up --nodes 3 --tracing-endpoint http://localhost:4318": "needs a collector: tests/cluster/test_traces.py",
    "headrace node stop 1 && <install the new version> && headrace node start 1": "needs two versions: tests/cluster",
}
"""Lines that are only checked against their programs, and why."""
INSTEAD: Final[Mapping[str, str]] = {
    "headrace top": "headrace top --once --interval 0.5",
    "headrace top --once --interval 1 --output json": "headrace top --once --interval 0.2 --output json",
    "headrace probe --interval 5 --metrics-port 9464": "headrace probe --count 2 --interval 0.1 --metrics-port 0",
    "headrace user create bob": "headrace user create bob --password-file bob.txt",
}
"""Replacements for commands that would run until somebody ends them, or ask at a terminal."""


def blocks(*places: tuple[str, str]) -> list[Block]:
    """The blocks of some sections, in order."""
    return [block for document, title in places for block in sections(document, [title])[title]]


def typed_commands() -> Iterator[tuple[str, Command]]:
    """Every command that is typed here, with its document."""
    for block in blocks(README, *SECURITY, ONE_NODE, CLUSTER, *OPERATIONS, LINK, HOME, *LEVEL, *RUNBOOKS):
        for command in block.commands:
            if command.line not in NOT_RUN:
                yield block.document, command
