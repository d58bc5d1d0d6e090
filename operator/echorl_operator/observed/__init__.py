"""What the operator knows of the world at one moment, as small immutable records. No I/O, no decisions."""
