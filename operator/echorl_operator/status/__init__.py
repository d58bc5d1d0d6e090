"""What a run's ``status`` says, from what is observed and what was decided. Pure."""
