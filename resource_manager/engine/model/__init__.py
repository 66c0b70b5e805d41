"""Entities, events, effects, settings and state tables: what every other room speaks of."""
