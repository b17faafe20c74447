"""Traces of rare, long operations: admin calls, changes of leaders, rolls, links. Off by default."""
