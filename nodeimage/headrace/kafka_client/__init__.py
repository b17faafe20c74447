"""The Kafka client of ours: for links, the command line and Spark."""
