"""What talks to the orchestrators of runs: long polls of their state, their tokens, and requests to them."""
