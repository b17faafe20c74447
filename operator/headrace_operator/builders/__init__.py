"""Pure functions from users' resources to the Kubernetes objects that the operator applies."""
