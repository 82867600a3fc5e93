"""Stable-Baselines3 on cuda: train, save, load and continue. `python sb3.py PPO folder`."""

import sys

import gymnasium as gym
from stable_baselines3 import DQN, PPO, SAC

name, folder = sys.argv[1:]
if name == "PPO":
    env = gym.make("CartPole-v1")
    model = PPO("MlpPolicy", env, device="cuda", n_steps=32, batch_size=16, n_epochs=1, seed=0)
elif name == "DQN":
    env = gym.make("CartPole-v1")
    model = DQN("MlpPolicy", env, device="cuda", learning_starts=50, train_freq=8, seed=0)
else:
    env = gym.make("Pendulum-v1")
    model = SAC("MlpPolicy", env, device="cuda", learning_starts=50, train_freq=16, seed=0)
model.learn(96)
model.save(f"{folder}/model.zip")

loaded = type(model).load(f"{folder}/model.zip", env=env, device="cuda")
observation, _ = env.reset(seed=1)
action, _ = model.predict(observation, deterministic=True)
assert (loaded.predict(observation, deterministic=True)[0] == action).all()
loaded.learn(32)
DEVICE = next(loaded.policy.parameters()).device
