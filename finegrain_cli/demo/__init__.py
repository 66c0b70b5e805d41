"""`./dev demo`: a small cluster on this host, a real job through it, nothing left at the end."""
