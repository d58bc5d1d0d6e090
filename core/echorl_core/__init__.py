"""What every EchoRL role shares. No torch, no kopf, no Kubernetes client, no network."""

__version__ = "0.1.0"
