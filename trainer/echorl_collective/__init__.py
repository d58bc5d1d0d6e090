"""Process groups of a trainer's publisher and engines' workers, and what goes through them."""
