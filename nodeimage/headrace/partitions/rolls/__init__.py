"""Rolls, by which a partition continues in a new partitionlet (DESIGN section 5)."""
