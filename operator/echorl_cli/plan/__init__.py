"""``echorl plan``: whether a run fits on its GPUs, before one is taken."""
