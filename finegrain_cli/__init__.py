"""The `finegrain` command. Only this package may import all others, and it imports them lazily."""
