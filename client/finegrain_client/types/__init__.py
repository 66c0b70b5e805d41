"""The values that the client returns: frozen, with a documented JSON form."""
