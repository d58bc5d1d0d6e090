"""What becomes of a run of coding agents whose processes are killed."""
