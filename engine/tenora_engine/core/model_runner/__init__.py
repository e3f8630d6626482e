"""Tensors of one step: batch building, the forward pass, sampling."""
