"""Fixtures: record batches, and logs with small chunks."""

from hypothesis import settings

from kit.written_log import _copy_log, _make_batch, new_writing, options, small_disk, writing

settings.register_profile("log", deadline=None, max_examples=60)  # a slow machine must not fail a test
settings.load_profile("log")

__all__ = ["_copy_log", "_make_batch", "new_writing", "options", "small_disk", "writing"]
