"""Which task comes next: permutations by seed, the mixture of environments, and the curriculum."""
