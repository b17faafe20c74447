"""The face to Kafka's clients: connections, dispatch, one module per API or family of APIs."""
