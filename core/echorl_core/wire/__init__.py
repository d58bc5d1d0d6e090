"""Messages between the roles: keyed, frozen msgspec structs, one module for each wire.

Who sends what:

    orchestrator -> trainer    batch.RankBatch                (GET  /trainer/batch?step=S&rank=R)
    trainer -> orchestrator    weights.PolicyAnnouncement     (POST /trainer/policy)
    trainer -> orchestrator    reports.StepReport             (POST /trainer/step)
    trainer -> orchestrator    reports.PartsReport            (POST /trainer/parts)
    trainer -> engine          weights.WeightManifest         (GET  .../manifest.json)
    orchestrator -> engine     engine.StageRequest and more   (POST /echorl/stage, ...)
    orchestrator -> everybody  run_state.RunState             (GET  /state)
"""
