"""A debate before a judge that this machine serves besides."""
