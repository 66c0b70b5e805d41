"""The resource manager's engine. It does no I/O: `step(state, event)` changes the state and returns
effects.
"""
