"""Servers of environments of other libraries, as they come from the registry."""
