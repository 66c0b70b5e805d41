"""Tracks the usage and quotas of groups and jobs, and finds the flow that is served next."""
