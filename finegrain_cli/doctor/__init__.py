"""The checks of `finegrain doctor`, one module per topic. None of them changes anything."""
