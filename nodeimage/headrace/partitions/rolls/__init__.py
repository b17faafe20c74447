"""Rolls: a partition goes on in a new partitionlet (DESIGN section 5)."""
