// Nothing is built from it: tests/charts reads the CRDs in the module's files. `go mod tidy` would take the line out.
module echorl.dev/tests/cluster/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
