"""The YAML configuration that Hydra composes."""
