"""The operator: turns EchoRLRuns in a cluster into pods and keeps them right."""
