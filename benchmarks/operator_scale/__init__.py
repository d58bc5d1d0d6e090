"""The operator at scale, on a real control plane with fake nodes."""
