"""The cluster store of a cluster on Kubernetes: objects of its API server, with their resourceVersion as version.

- `objects`: what stands in which object. Pure.
- `api`: one API server, over aiohttp; the official client costs 46 MiB a process. Knows nothing of records.
- `cache`: objects and records as last seen, and what changed since when. Pure.
- `seen`: that for threads, which may wait for changes.
- `watches`: lists and watches that keep it up to date.
- `store`: the ClusterStore.
"""
