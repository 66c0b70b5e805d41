"""Implements `finegrain run`, which runs one command in a slot, or in every slot of a gang."""
