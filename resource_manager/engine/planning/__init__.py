"""Which executors to ask for, as numbers; and whether a gang could be placed as a whole."""
