"""What tests share, those on kind too: clusters, nodes, clients, faults, histories. Imports no test."""
