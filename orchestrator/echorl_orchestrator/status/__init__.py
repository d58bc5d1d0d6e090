"""What the run says of itself: ``GET /state``, ``GET /metrics`` and ``/healthz``.

run_view           the content of the state, read from the parts
state_board        its revision, the readers that wait for one, and what the run waits for
progress           the newest rows, and how the run ended
throughput         rates between two steps
health, volume     whether the role is alive, and how full the volume is
metrics_registry   the registry; ``scrape`` reads its values
"""
