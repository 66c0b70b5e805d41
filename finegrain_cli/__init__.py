"""The `finegrain` command; the only package that may import all others, each lazily."""
