"""What makes a run right: a queue of runs, and one pass over each."""
