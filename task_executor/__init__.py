"""The task executor: carves, enforces and reports the slots of one host."""
