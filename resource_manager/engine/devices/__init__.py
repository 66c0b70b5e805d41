"""Keeps the devices of one host: the shares of slots, and the choice of devices for a new slot."""
