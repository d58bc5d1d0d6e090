"""The command line ``echorl``: manifests, runs on one machine, and views of runs in a cluster."""
