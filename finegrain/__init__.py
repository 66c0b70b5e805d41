"""Shared vocabulary: value types, cpusets, topology, errors; imports nothing of ours."""
