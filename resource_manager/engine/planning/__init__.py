"""Plans which executors are requested from providers. Also decides whether a gang could ever be
placed as a whole.
"""
