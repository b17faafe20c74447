"""One storage node: its parts put together, and its process (`python -m headrace.node`)."""

from headrace.node.node import Node
from headrace.node.options import Options

__all__ = ["Node", "Options"]
