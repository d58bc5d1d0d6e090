"""What to do next, from what is observed. Pure: no clock, no I/O; the same observation gives the same plan."""
