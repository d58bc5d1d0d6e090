"""The manifest's compiler: from a run and where its roles are placed to a typed config for each role."""
