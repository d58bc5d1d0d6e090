"""What one attempt keeps on disk and goes on from after a restart.

disk            all of it, read at the start of the process
trainer_desk    what trainer ranks are told; keeps the newest policy and a stop
committer       checkpoints, from the ranks' parts to the manifest
live_settings   settings that change while the run goes on
fixed_settings  settings that no later attempt may change
presence        is the run directory still there
"""
