"""What the client returns: frozen values with a documented JSON shape."""
