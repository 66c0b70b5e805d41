"""Handles events of job masters about requests, gangs, ranges and resizes."""
