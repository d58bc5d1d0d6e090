module echorl/sandbox-daemon

go 1.26.0
