"""A job as its master holds it: requests, gangs, ranges, events."""
