"""The supervisor of runs on one machine: what the operator does in a cluster, with processes instead of pods."""
