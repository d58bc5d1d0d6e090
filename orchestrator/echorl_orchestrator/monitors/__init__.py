"""Where a run's metrics go besides ``/metrics`` and records: Weights & Biases, TensorBoard.

    training --row--> Monitors --> Feed (bounded queue) --pipe--> process with a client --> its server, or files

Each monitor has a process of its own, so that a client that fails, hangs or leaks costs rows of that monitor alone.
"""
