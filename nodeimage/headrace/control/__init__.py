"""Who is leader and where replicas lie: pure decisions, and the loop that carries them out (DESIGN section 3)."""
