"""Makes the pods that the sandboxes of runs are: the run's object says what they may be, its token who may ask."""
