"""Who comes first: flows, their tallies and limits, what starves, how long threads take. Pure."""
