"""Who somebody is, and how that is proved."""
