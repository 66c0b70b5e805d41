"""Which host serves a request: index, filter, rank, choose."""
