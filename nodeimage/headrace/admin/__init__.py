"""Headrace's own admin calls, and HTTP beside the Kafka port: health, readiness and metrics."""
