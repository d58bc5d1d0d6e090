"""A teacher: another model behind an OpenAI-compatible URL, that plays episodes (sft) or judges tokens (opd)."""
