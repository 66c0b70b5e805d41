"""The shell around the engine: gRPC, one writer, timers."""
