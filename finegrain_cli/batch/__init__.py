"""`finegrain batch`: threads of work in the foreground or in the background."""
