"""On-policy distillation with a teacher that this machine serves besides."""
