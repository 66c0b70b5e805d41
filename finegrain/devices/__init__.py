"""Devices of hosts, such as GPUs, NICs and FPGAs: what there is, and what slots request and get."""
