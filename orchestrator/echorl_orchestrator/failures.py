"""Input that a user has to correct; the role ends with exit code BAD_INPUT and is not restarted."""


class BadInputError(ValueError):
    """A model, renderer, environment or hook cannot be used; the message names the field and what is accepted."""
