"""The parts of ``builtin:swe``: rows, repositories in sandboxes, agents, grading, and what plays episodes."""
