"""A run in real pods that loses pods at random, and what it gets done."""
