"""The ledger of pending work: each job's queues, and which of them is tried next."""
