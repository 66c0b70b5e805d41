"""Whether the ledgers agree with each other. Changes nothing."""
