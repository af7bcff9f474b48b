"""Networks of Hugging Face: their configuration, names of tensors, and weights."""
