"""Policies for use without this library: ONNX and torch.export files, and their contract."""
