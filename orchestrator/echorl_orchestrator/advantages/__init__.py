"""From the rewards of a group to advantages.

estimators       groupMean, maxRl and none, of one group
length_cost      what an episode cost, for length shaping
rae              running baselines for the seats of a game
advantage_hook   a user's own function, and what it is given
"""
