"""Durable state: the interface `Store`, implemented by SQLite, by PostgreSQL, and in memory for
tests."""
