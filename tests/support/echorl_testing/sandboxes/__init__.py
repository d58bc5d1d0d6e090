"""What tests of sandboxes share."""
