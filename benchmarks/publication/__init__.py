"""How long a policy version takes from the trainer's weights to an engine's, part by part."""
