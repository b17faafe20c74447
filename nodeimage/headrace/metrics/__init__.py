"""What a node measures of itself: each metric is declared once, counted cheaply, and told as Prometheus asks for it."""
