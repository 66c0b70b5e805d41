"""Handles of a job master: the job, its requests, gangs, ranges and events."""
