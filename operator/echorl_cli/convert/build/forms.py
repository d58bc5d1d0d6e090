"""Values that change their form."""


def import_path(path: str | None) -> str | None:
    """``pkg.module.name`` as ``pkg.module:name``; a path with a colon as it is."""
    if path is None or ":" in path or "." not in path:
        return path
    module, _, name = path.rpartition(".")
    return f"{module}:{name}"


def tidy(quotient: float) -> float:
    """A quotient of two round numbers without the last digits, in which division leaves its error."""
    return float(f"{quotient:.12g}")
