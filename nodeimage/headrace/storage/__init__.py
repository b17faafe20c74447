"""The disk: retention, garbage collection of chunks, regrouping, scrub, closing of chunks."""
