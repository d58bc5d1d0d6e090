"""Sandboxes that are pods; commands and files go by HTTP to the daemon inside. Imports nothing here."""
