"""Handles the event `Decide`: places requests, gangs and resizes, makes reservations, and sends
commands to executors.
"""
