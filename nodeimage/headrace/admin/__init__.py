"""HTTP beside the Kafka port: health, readiness and metrics, for Kubernetes and Prometheus."""
