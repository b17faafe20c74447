"""The cluster store: the small consistent map of nodes, volumes and containers."""
