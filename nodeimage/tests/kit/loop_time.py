"""Durations by the loop's clock."""

import asyncio


def passed_ms(began: float) -> int:
    """Milliseconds since `began` on the running loop's clock. uvloop's clock has whole milliseconds; a difference of
    two such times, in floating-point seconds, may fall short of the real duration.
    """
    return round((asyncio.get_running_loop().time() - began) * 1000)
