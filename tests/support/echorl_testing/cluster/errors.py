"""What goes wrong with a test cluster."""


class ClusterError(Exception):
    """A cluster could not be started, changed or ended; the message says what failed and shows the end of its log."""


class Unavailable(ClusterError):
    """This machine cannot hold a cluster at all: no root, no namespaces, no Go. Tests skip with the message."""
