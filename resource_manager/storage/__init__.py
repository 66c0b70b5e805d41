"""Durable state: one promise, SQLite and PostgreSQL."""
