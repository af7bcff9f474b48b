"""Transformers under fully sharded data parallelism: the seconds of a step, by term."""
