"""Which executors to request, as numbers; and whether a gang could be placed as a whole."""
