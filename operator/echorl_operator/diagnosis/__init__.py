"""Why a run waits, in one causal sentence, from what is observed. Pure."""
