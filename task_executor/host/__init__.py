"""Access to the host: sysfs and procfs, devices, the helper, a kubelet's files."""
