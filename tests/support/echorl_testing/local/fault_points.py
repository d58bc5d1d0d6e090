"""The named points at which a run's roles are killed, each once, by the passage of it in a process's life.

In a run that meets all of them, attempt 1 dies at step 3, attempt 2 (from 2) at the pull of step 6, attempt 3 (from 4)
while it saves step 8, attempt 4 (from 6) after it wrote step 10.
"""

TRAINER = {"trainer.mid_step": "@3", "trainer.pulled": "@4", "trainer.mid_save": "@2", "trainer.saved": "@2"}
ORCHESTRATOR = {
    "orchestrator.before_seal": "@1",
    "orchestrator.after_seal": "@1",
    "orchestrator.one_rank_pulled": "@1",
    "orchestrator.staged": "@2",
    "orchestrator.mid_apply": "@3",
    "orchestrator.before_resume": "@3",
    "orchestrator.before_manifest": "@1",
}
ENGINE = {"engine.staged": "@4", "engine.mid_apply": "@140"}
"""The second one counts tensors: in the middle of the sixth version that the restarted engine applies."""
