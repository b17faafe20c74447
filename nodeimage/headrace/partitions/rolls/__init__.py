"""Rolls, by which a partition continues in a new partitionlet (docs/replication.md)."""
