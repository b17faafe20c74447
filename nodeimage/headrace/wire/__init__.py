"""Kafka's wire protocol: framing, codecs, record batches. Knows nothing of storage, sockets or brokers."""
