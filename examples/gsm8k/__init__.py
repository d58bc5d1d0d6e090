"""The environment of the recipes for real models, as a file that goes into a ConfigMap."""
