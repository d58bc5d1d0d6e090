"""Python files of the project, as tests look at them."""

import ast
import gc
from pathlib import Path


def parsed(file: Path) -> ast.Module:
    """A file's syntax tree.

    Nothing is collected meanwhile: a finalizer that shows a traceback parses lines of it, and Python 3.11 then takes
    the tree that it was at for damaged.
    """
    gc.disable()
    try:
        return ast.parse(file.read_text(), str(file))
    finally:
        gc.enable()
