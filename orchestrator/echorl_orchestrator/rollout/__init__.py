"""The play of train episodes: groups of one task are started, scored when they close, and wait for a batch.

rollout         all of it, as the role starts it
scheduler       how many episodes are in flight
groups          a group of one task, and what its survivors become
group_scoring   scores, advantages and filters of a group that has closed
ready_buffer    ready episodes on their way into batches
counters        what happened to episodes
mode_traits     what a run's mode means for all of this
player          who plays an episode, as the scheduler sees it
"""
