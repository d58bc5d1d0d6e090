"""Makes the fields of a manifest from the keys of a run: one module for each part of ``spec``."""
