"""How fast sandboxes start and end, and that nothing is left of hundreds."""
