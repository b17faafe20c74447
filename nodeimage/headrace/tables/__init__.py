"""Replicated tables in SQLite: a log of commands, its application, snapshots and checksums."""
