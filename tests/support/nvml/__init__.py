"""A driver for tests, which the real binding of NVML loads."""
