"""A slot as its job master holds it: its size, its tasks, its reuse."""
