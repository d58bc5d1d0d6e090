"""Chat messages and conversations in one form, whoever sends them; nothing here knows of tokens."""
