"""Small sums over measurements: quantiles, medians of paired runs. Knows nothing of where they come from."""

import math
from collections.abc import Sequence
from statistics import median


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of an ordered, non-empty sequence lies, by the nearest rank."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, more_is_better: bool) -> float | None:
    """Median over the alternating runs of how many times better ours was in the run beside theirs; None without any."""
    pairs = [(a, b) if more_is_better else (b, a) for a, b in zip(ours, theirs, strict=False)]
    ratios = [over / under for over, under in pairs if under > 0]
    return median(ratios) if ratios else None
