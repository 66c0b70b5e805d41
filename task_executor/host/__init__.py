"""Reads the host: /sys and /proc, devices, and a kubelet's files. Connects to the helper."""
