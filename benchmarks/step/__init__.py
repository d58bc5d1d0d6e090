"""Whole optimizer steps of the trainer beside a peer made of the best public parts."""
