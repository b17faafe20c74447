"""Headrace: the storage node, its protocol, its log, its catalog and its command line."""

import os

__version__ = "0.2.0"

if os.environ.get("HEADRACE_PURE", "") not in ("", "0"):
    from headrace.base.pure import run_sources

    run_sources()
