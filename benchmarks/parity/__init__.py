"""Every loss and advantage against float64 and against formulas of the papers and of prime-rl, gradients included.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.parity

Seconds, no network, no engine. Exits with 1 when an error is over the bound.
"""
