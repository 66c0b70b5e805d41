"""`finegrain job run` and `finegrain job status`: run a job graph, and show how far it is."""
