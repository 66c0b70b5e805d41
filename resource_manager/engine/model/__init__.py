"""Entities, events, effects, settings and state tables, which all other engine packages use."""
