"""Learns from sealed batches: component losses on packed tokens, torch FSDP2, checkpoints, published weights."""
