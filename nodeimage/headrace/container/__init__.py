"""Containers: replicated logs, the unit of replication, failover and placement. Knows nothing of Kafka's protocol."""
