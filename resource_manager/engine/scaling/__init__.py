"""A cluster that grows and shrinks: which executors to ask for, and what becomes of them."""
