"""The shell around the slot table: gRPC, heartbeats, settings."""
