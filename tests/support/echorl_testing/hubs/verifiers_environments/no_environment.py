"""A module that is there and no environment."""
