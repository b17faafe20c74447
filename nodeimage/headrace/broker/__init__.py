"""The Kafka listener: one module per API or family of APIs, over the catalog and the containers."""
