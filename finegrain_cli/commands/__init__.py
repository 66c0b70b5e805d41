"""The commands, by what they are about. Each module registers its own; imports stay inside."""
