"""The page of runs: folders of any size from a seed, and how long one takes to open."""
