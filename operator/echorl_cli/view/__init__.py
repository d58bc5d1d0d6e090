"""``echorl view``: a local page to look at runs.

From the top down:

command.py    options, what is refused, and the start
server.py     the server and its pages; ``guard.py`` says who may see them; ``pages/`` builds them
episode.py    one episode whole, from its file; ``tokens_of.py`` what a step trained of it
queries.py    questions to the tables: episodes by a filter, batches, curves
intake.py     takes into the tables what a run has written since the last look, forever; ``tail.py`` reads JSON lines
tables.py     the tables, in memory; nothing is written into a run's folder, and no link in it is followed
folders.py    which runs are shown, and by what names
markup.py, charts.py    texts and pictures: pure functions
"""
