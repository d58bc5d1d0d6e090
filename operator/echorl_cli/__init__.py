"""The command line: `echorl validate, render, run, prepare, plot`."""
