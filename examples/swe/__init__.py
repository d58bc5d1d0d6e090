"""The model of the example swe: seeded, then warm-started on fixes that are right now and then."""

import os

# Before torch is imported: on a busy machine, threads that spin while they wait for one another hold one another up.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
