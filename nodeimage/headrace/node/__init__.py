"""One storage node: the code that assembles its parts, and its process (`python -m headrace.node`).

`Node` itself is loaded on first use only: the operator and the command line import this package just for a node's
options and folders.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.node.node import Node
    from headrace.node.options import Options

__all__ = ["Node", "Options"]


def __getattr__(name: str) -> object:
    match name:
        case "Node":
            from headrace.node.node import Node

            return Node
        case "Options":
            from headrace.node.options import Options

            return Options
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
