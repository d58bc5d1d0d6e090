"""The output head alone: time, memory and errors of ours, of what it was, and of peers."""
