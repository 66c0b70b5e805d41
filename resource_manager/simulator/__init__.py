"""The real engine in virtual time: clusters, jobs and batch logs, without clock, wire or hosts."""
