"""Reasons of the kubelet for a container that waits, by what can be done about it."""

PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
CRASH = frozenset({"CrashLoopBackOff"})
