"""``echorl convert``: manifests from the configuration files of other training systems."""
