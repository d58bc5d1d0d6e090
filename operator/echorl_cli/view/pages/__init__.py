"""The pages: runs side by side, one step's batch, episodes by a filter, one episode."""
