"""The ledger of what waits: each job's queue, and which of it is to be tried."""
