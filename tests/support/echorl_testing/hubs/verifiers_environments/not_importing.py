"""An environment whose module cannot be imported."""

import no_such_dependency  # noqa: F401
