"""Defines the devices of hosts (such as GPUs, NICs and FPGAs), the requests for devices, and the
shares of devices that slots have.
"""
