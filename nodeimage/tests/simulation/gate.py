"""The seeds that the gate runs: `python -m simulation --gate`, `--links --gate` for several clusters."""

GATE = range(800)
GATE_WITH_LINKS = range(60)
