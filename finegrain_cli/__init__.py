"""Implements the `finegrain` command. Only this package is allowed to import all other packages. A
command imports a package only when the command needs it.
"""
