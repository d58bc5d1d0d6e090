"""Episodes of several members: who speaks when, what each one sees, who plays a seat, and what trains of it.

turn_taking      who may speak now; the turns of a slot are taken together or not at all
bindings         who plays which member of a task's episode, and who of them learns
seats            the policy behind a member
endpoint         an OpenAI-compatible endpoint behind a member
reasoning        what of a turn is said aloud
loop             one attempt, from reset to rewards
play             attempts with sessions and workers
member_samples   one training unit for each member that learns
compatibility    whether a manifest goes with what its environments turned out to be
"""
