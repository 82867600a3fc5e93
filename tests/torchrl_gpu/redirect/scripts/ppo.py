"""PPO in a single file, as many research scripts are written. `python ppo.py folder`."""

import random
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.distributions.categorical import Categorical

SEED = 1
NUM_ENVS = 4
NUM_STEPS = 32


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(4, 64), nn.Linear(4, 64)
        nn.init.orthogonal_(second.weight, 2**0.5)
        self.critic = nn.Sequential(first, nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(second, nn.Tanh(), nn.Linear(64, 2))

    def get_action_and_value(
        self, x: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        probs = Categorical(logits=self.actor(x).float())
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


if __name__ == "__main__":
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    torch.cuda.manual_seed_all(SEED)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert torch.cuda.is_available()
    assert device == torch.device("cuda")
    torch.cuda.reset_peak_memory_stats()
    print(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory)

    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(NUM_ENVS)])
    agent = Agent().to(device)
    assert all(parameter.is_cuda for parameter in agent.parameters())
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    scaler = torch.amp.GradScaler("cuda")

    obs = torch.zeros((NUM_STEPS, NUM_ENVS, 4), device="cuda:0")
    actions = torch.zeros((NUM_STEPS, NUM_ENVS)).to(device)
    logprobs = torch.zeros((NUM_STEPS, NUM_ENVS)).cuda()
    rewards = torch.zeros((NUM_STEPS, NUM_ENVS)).to("cuda", non_blocking=True)
    dones = torch.zeros((NUM_STEPS, NUM_ENVS), device=device)
    values = torch.zeros((NUM_STEPS, NUM_ENVS), device=torch.device("cuda"))

    start = time.time()
    observation, _ = envs.reset(seed=SEED)
    next_obs = torch.Tensor(observation).to(device)
    for step in range(NUM_STEPS):
        obs[step] = next_obs
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        observation, reward, stops, cuts, _ = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs = torch.Tensor(observation).to(device)
        dones[step] = torch.Tensor(np.logical_or(stops, cuts)).to(device)

    with torch.no_grad():
        returns = torch.zeros_like(rewards).to(device)
        following = agent.critic(next_obs).flatten()
        for t in reversed(range(NUM_STEPS)):
            following = returns[t] = rewards[t] + 0.99 * (1.0 - dones[t]) * following

    b_obs, b_actions, b_returns = obs.reshape(-1, 4), actions.reshape(-1), returns.reshape(-1)
    b_logprobs, b_advantages = logprobs.reshape(-1), (returns - values).reshape(-1)
    for rows in torch.randperm(NUM_STEPS * NUM_ENVS, device="cuda").split(64):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                b_obs[rows], b_actions.long()[rows]
            )
            ratio = (newlogprob - b_logprobs[rows]).exp()
            policy_loss = -(b_advantages[rows] * ratio.clamp(0.8, 1.2)).mean()
            value_loss = (newvalue.view(-1) - b_returns[rows]).pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()
    speed = int(NUM_STEPS * NUM_ENVS / (time.time() - start))
    print(f"SPS: {speed}, loss: {loss.item()}, peak: {torch.cuda.max_memory_allocated()}")

    path = f"{sys.argv[1]}/agent.pt"
    torch.save(agent.state_dict(), path)
    loaded = Agent().cuda()
    loaded.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    assert torch.equal(loaded.critic(next_obs), agent.critic(next_obs))
    torch.cuda.empty_cache()
    envs.close()
    DEVICE = next(loaded.parameters()).device
