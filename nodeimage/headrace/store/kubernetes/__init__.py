"""The cluster store of a cluster on Kubernetes: custom resources, with their resourceVersion as version.

- `objects`: what stands in which object. Pure.
- `api`: one API server, over aiohttp; the official client costs 46 MiB a process.
- `store`: the ClusterStore, with a cache that watches keep up to date.
"""
