"""Environments behind resources servers of NeMo Gym, by their HTTP protocol: ``nemo-gym:http://HOST:PORT``.

Nothing here imports that library. The agent is the one that the library calls simple: it asks, calls tools, and is
verified when it calls no more.
"""
