"""``echorl environments``: what can be said of environments' data before a run."""
