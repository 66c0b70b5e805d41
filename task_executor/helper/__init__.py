"""The privileged helper: cgroups and tasks, nothing else. Standard library only."""
