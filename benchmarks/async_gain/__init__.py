"""Sampling beside training against sampling in turns with it."""
