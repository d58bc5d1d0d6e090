"""Rules that take episodes out of training.

rules          which rules hold, and what they take away
text_filters   signs of a policy that has come apart: gibberish and repetition
filter_hook    a user's own function, and what it is given
"""
