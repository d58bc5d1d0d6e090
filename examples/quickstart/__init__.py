"""The quickstart's model: seeded, then warm-started on scripted demonstrations."""
