"""The values that the client returns. They are frozen and have a documented JSON form."""
