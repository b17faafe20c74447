"""The catalog's queries, by family. Each row is checked as it is read, and each absence is proven (proofs.py)."""
