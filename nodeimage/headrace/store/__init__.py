"""The cluster store: the small consistent map of nodes, volumes and containers (DESIGN section 3)."""
