"""Values that travel between programs: one class each, for all of them."""
