"""The worlds: one folder each, all of them `torchrl.envs.EnvBase`."""
