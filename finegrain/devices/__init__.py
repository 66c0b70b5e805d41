"""Defines devices of hosts, such as GPUs, NICs and FPGAs, requests for devices, and the shares that
slots have.
"""
