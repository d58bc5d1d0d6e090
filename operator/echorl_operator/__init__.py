"""The EchoRLRun manifest and what is derived from it."""
