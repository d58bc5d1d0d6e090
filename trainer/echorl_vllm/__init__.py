"""The engine side of weight updates: a worker extension and an ASGI middleware for a stock vLLM server."""
