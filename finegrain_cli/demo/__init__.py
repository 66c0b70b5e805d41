"""`./dev demo`: runs a real job on a small cluster on this host, and leaves nothing behind."""
