"""The built-in environments: each module here is one, ``builtin:<its name with hyphens>``, made by its ``build``."""
