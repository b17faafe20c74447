"""Headrace's own Kafka client: for links, the command line and Spark."""
