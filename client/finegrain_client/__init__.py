"""What job masters install: ask for slots, run tasks in them, give them back."""
