"""What a link asks of its source: another Headrace cluster, or Apache Kafka."""
