"""``openenv:<url>``: environments behind a server of OpenEnv, each episode a session of its own on its WebSocket.

Nothing of that library is needed here: its wire is JSON. ``session`` speaks it, ``environment`` makes text of it.
"""
