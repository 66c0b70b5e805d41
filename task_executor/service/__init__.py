"""Contains the executor's front process: gRPC service, reports, tasks, checkpoint, metrics."""
