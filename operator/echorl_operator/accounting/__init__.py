"""What runs cost and how often they restart, from what is observed and the time. Pure."""
