"""The metrics of a node: each is declared once, cheap to count, and exposed in Prometheus's format."""
