"""Manages the identities of the cluster: its authority, certificates, join tokens and denials.

`own.py` keeps the files of this resource manager. `issuing.py` signs certificates. `members.py`
stores tokens and denials. The other modules serve calls about all of these.
"""
