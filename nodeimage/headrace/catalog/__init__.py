"""Streams, topics, chains and committed offsets: commands applied in order to SQLite."""
