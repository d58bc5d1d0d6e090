"""OpenAI-compatible servers that are not engines of the run: teachers, and endpoints that play a member."""
