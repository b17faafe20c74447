"""Headrace: the storage node, its protocol, its log, its catalog and its command line."""

__version__ = "0.2.0"
