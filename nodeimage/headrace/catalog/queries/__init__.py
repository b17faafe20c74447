"""What the catalog answers, by family. Each row is checked as it is read, and each absence proven (proofs.py)."""
