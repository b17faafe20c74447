"""Statistics over measurements: quantiles, medians of paired runs."""

import math
from collections.abc import Sequence
from statistics import median


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of an ordered, non-empty sequence lies, by the nearest rank."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, more_is_better: bool) -> float | None:
    """Return the median over the paired runs of how many times better ours was; None without any pair."""
    pairs = [(a, b) if more_is_better else (b, a) for a, b in zip(ours, theirs, strict=False)]
    ratios = [over / under for over, under in pairs if under > 0]
    return median(ratios) if ratios else None
