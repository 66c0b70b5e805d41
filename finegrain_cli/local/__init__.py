"""`finegrain up`: a cluster on this host."""
