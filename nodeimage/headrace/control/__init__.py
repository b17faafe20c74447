"""Which node leads and where replicas are placed: pure decisions, and the loop that applies them."""
