"""Devices of hosts, such as GPUs, NICs and FPGAs: descriptions, requests and shares of slots."""
