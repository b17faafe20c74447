"""The Kubernetes operator's package: it deploys the storage nodes of `headrace`."""
