"""Who starts and stops executors, and how operators configure it."""
