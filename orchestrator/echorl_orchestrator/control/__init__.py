"""The top of the role: what makes the parts, drives them, and ends the run.

orchestrator      the life of one attempt, and the data-flow map of the role
wiring            makes every part before any of them runs
run_parts         the record of all parts
training          seals batch after batch until the last one is trained
trainer_reports   takes in what the trainer and the evals report
endings           finished, stopped on request, or failed
listening         its socket
http_api          the routes of trainers, supervisor, probes and Prometheus
slow_connections  closes connections that begin no request
supervision       tasks that run beside each other, and how they are closed
"""
