"""The code around the engine: gRPC services, the single writer, links to executors, timers."""
