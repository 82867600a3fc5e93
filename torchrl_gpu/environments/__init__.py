"""The contract of environments, and the adapter for any other TorchRL environment."""
