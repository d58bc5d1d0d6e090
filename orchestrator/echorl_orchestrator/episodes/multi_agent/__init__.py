"""Episodes of several members: who speaks when, what each one sees, who plays a seat, and what trains of it.

contract   what authors write: members, schedule, a MultiAgentEnv
floor      who may speak now; the turns of a slot are taken together or not at all
seats      the policy, or an endpoint, behind each member
loop       one try, from reset to rewards
play       tries with sessions and workers, as the player needs them
units      one training unit for each member that learns
"""
