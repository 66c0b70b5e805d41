"""The executor's daemon around the slot table: gRPC service, reports, tasks, checkpoint,
metrics.
"""
