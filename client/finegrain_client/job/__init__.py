"""Implements the handles of a job master: the job, its requests, gangs, ranges and events."""
