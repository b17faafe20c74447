"""The cluster store on Kubernetes: objects of its API server, with their resourceVersion as version.

- `objects`: which record is in which object. Pure.
- `api`: calls of one API server, over aiohttp (CONTRIBUTING.md says why not by the official client). Knows nothing of
  records.
- `cache`: objects and records as last seen, and their changes. Pure.
- `observed_objects`: the cache, for threads, which may wait for changes.
- `watches`: lists and watches that keep it up to date.
- `store`: the ClusterStore.
"""
