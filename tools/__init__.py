"""Generators of reference pages, of the CRD and of what the charts hold. No image has them."""
