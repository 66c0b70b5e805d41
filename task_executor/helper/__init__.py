"""Manages cgroups and tasks, in a privileged process. So this package imports only the standard
library.
"""
