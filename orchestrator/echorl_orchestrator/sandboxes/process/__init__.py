"""Sandboxes on this machine, of namespaces and bubblewrap; ``provider.py`` is what others use. Imports nothing here."""
