"""Fairness: the usage of groups and jobs, their quotas, and the flow that is served next."""
