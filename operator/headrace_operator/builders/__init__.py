"""Pure functions from what users ask for to the objects of Kubernetes that the operator applies."""
