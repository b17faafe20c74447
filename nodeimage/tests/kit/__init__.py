"""Code that tests share, also those on kind: clusters, nodes, clients, faults, histories. Imports no test."""
