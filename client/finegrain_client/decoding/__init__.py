"""Messages to the values of `types`."""
