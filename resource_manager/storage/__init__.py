"""Durable state: one interface (`Store`), kept by SQLite, PostgreSQL, or memory for tests."""
