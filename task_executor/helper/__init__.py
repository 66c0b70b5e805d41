"""The privileged helper: manages cgroups and tasks. Imports only the standard library."""
