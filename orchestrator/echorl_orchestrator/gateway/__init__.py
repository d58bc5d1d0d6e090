"""The one way from environments and agents to the engines, which captures every sampled token."""
