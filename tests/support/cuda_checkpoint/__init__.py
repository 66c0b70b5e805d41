"""A `cuda-checkpoint` for tests: it keeps states of processes in files, and checks transitions."""
