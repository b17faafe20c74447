"""What this cluster answers to the links of others."""
