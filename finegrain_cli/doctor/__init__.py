"""The checks of `finegrain doctor`, one module per topic. No check changes anything on the host."""
