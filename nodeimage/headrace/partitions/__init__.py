"""Topics and partitions in memory: look-up, placement, idempotent producers, rolls and reads."""
