"""The fairness ledger: usage of groups and jobs, quotas, and which flow is next in order."""
