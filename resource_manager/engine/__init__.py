"""The rules, pure: `step(state, event) -> effects`."""
