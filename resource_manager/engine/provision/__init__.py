"""Rules of a cluster that grows and shrinks: what to ask for, and what becomes of it."""
