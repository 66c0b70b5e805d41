"""The ledger of usage: the tree of flows, quotas, and which flow is next in order."""
