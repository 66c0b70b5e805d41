"""Manages cgroups and tasks as a privileged process, which imports only the standard library."""
