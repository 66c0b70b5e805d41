"""Manages cgroups and tasks. This is a privileged process, so it imports only the standard
library.
"""
