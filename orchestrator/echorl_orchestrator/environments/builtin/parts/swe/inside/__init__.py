"""Files that are put into sandboxes: each is one, needs nothing but Python's standard library, and runs on old ones."""
