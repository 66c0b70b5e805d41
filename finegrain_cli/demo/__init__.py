"""`./dev demo`: runs a real job on a small cluster on this host, then removes the cluster."""
