"""The resource manager's engine, without I/O: `step(state, event)` returns effects."""
