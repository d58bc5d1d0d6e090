"""The model of the examples rlvr, debate and consultancy: seeded, then warm-started on random answers and arguments."""

import os

# Before torch is imported: on a busy machine, threads that spin while they wait for one another hold one another up.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
