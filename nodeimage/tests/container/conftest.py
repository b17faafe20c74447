"""Lets the tests of replication share `several.py`."""
