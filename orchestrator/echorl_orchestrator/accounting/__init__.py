"""Where the time of trainer ranks and engines goes: every second of each is in one state of ``wire.goodput``.

``ledger`` decides, and is pure; ``meter`` reads the clock and keeps the ledger's small state on disk.
"""
