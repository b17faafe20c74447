"""Disk space: retention, garbage collection of chunks, regrouping, scrub, closing of chunks."""
