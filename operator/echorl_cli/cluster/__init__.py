"""What is read from a cluster: `echorl status`, `echorl why`."""
