"""The sources that links copy from: another Headrace cluster, or Apache Kafka."""
