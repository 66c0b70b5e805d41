"""What touches the host: sysfs, cgroups, devices, processes."""
