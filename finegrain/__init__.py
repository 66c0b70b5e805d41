"""Types that all programs share: values, cpu sets, topology, errors.

It imports no other package of this project.
"""
