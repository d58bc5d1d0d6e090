"""The CustomResourceDefinition, made from the manifest's models. Pure."""

from echorl_manifest.crd.assembly import crd_text, custom_resource_definition

__all__ = ["crd_text", "custom_resource_definition"]
