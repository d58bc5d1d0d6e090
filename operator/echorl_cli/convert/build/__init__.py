"""From the keys of a run to the fields of a manifest, one module for each part of ``spec``."""
