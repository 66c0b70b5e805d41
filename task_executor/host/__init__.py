"""Access to the host: /sys and /proc, devices, the helper, and a kubelet's files."""
