"""Streams, topics, chains and cursors: commands applied in order to SQLite (DESIGN section 6)."""
