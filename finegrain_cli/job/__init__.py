"""`finegrain job run` and `finegrain job status`: run a job graph, and show its progress."""
