"""Transformers as Megatron splits them: seconds and bytes of a step, by term."""
