"""Evals: when one is due, how it is played beside training, and its scores."""
