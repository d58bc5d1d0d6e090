"""Bad inputs of every command of ``echorl``: hostile values times the places that take them.

``python -m benchmarks.bad_inputs`` tries them all. It fails if one ends in a traceback, takes longer than 10 s of CPU
(or 60 s by the clock), or is refused without a word.
"""
