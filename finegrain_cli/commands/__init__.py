"""The commands, one module per topic. Each module registers its commands, and imports
inside them.
"""
