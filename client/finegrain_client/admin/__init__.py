"""What operators do: drain, forget, release, change groups and settings."""
