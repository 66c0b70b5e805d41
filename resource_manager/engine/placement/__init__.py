"""Decides which host serves a request: finds hosts in an index, filters, ranks and chooses them."""
