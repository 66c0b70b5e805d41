"""The executor's daemon: gRPC service, reports, tasks, checkpoint, metrics."""
