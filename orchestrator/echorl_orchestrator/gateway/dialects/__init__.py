"""One module for each API that agents may speak to the gateway."""
