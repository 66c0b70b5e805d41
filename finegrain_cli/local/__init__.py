"""The local cluster of `finegrain up`: resource manager and executors on this host."""
