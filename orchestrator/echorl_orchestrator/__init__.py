"""Plays episodes against vLLM engines, seals batches for the trainer, commits checkpoints, drives weight updates."""
