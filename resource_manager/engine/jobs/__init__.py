"""Handles events of jobs and of resource groups."""
