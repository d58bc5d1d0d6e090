"""How an episode is played, from a task to samples.

player                   all environments of a run: workers, attempts that are repeated, users' own functions
episode_players          which module plays which environment, by the run's mode
episode_attempt          what an attempt at an episode is given, and what plays it
attempt_outcome          what an attempt leaves behind: samples, a record, or an error
episode_loop             our loop over a TextEnv, or a runner that calls the gateway itself
single_agent             episodes that the policy plays alone
multi_agent/             episodes of several members
teacher/                 episodes that a teacher plays (sft) or judges (opd)
recorded_conversations   episodes that nobody plays, for mode sft
sft                      conversations as samples, for mode sft
samples, echo            a session's branches as samples, and which of their tokens train by cross-entropy
"""
