"""TODO: say what this package does."""
