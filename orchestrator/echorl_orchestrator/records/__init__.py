"""What a run leaves to read: JSON lines of steps, evals and updates, and episodes as JSON lines and Parquet."""
