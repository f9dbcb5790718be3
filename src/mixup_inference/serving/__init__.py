"""A guard behind HTTP: the Open Inference Protocol, batched, bounded and measured."""
