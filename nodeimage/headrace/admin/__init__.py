"""Headrace's own admin calls, and the HTTP port next to the Kafka port: health, readiness and metrics."""
