"""``echorl preflight``: does an engine of this machine compute what the trainer makes of an adapter?"""
