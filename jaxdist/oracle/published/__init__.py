"""Published cost models, restated: ParaDL and Megatron-LM."""
