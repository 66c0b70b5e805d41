"""Identities of the cluster: its authority, certificates, join tokens and denials.

`own.py` keeps the files of this resource manager, `issuing.py` signs, `members.py` stores tokens
and denials, and the other modules serve them.
"""
