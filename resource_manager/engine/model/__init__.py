"""Entities, events, effects, settings and state tables. All other engine packages use them."""
