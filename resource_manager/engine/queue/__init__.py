"""The ledger of pending work: the queues of each job, and the order in which they are tried."""
