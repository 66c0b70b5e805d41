"""The privileged helper: it manages cgroups and tasks, and imports only the standard library."""
