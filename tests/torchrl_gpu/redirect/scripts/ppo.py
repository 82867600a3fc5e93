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
ITERATIONS = 2
EPOCHS = 2
MINIBATCH = 64


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(observations, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), 1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(observations, 64)), nn.Tanh(), layer_init(nn.Linear(64, actions))
        )

    def get_value(self, x: Tensor) -> Tensor:
        return self.critic(x)

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
    agent = Agent(4, 2).to(device)
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
    next_done = torch.zeros(NUM_ENVS).to(device)
    for iteration in range(ITERATIONS):
        optimizer.param_groups[0]["lr"] = 2.5e-4 * (1.0 - iteration / ITERATIONS)
        for step in range(NUM_STEPS):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            observation, reward, stops, cuts, _ = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs = torch.Tensor(observation).to(device)
            next_done = torch.Tensor(np.logical_or(stops, cuts)).to(device)

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards).to(device)
            last: Tensor | float = 0.0
            for t in reversed(range(NUM_STEPS)):
                final = t == NUM_STEPS - 1
                going_on = 1.0 - (next_done if final else dones[t + 1])
                following = next_value if final else values[t + 1]
                delta = rewards[t] + 0.99 * following * going_on - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * going_on * last
            returns = advantages + values

        b_obs, b_actions = obs.reshape(-1, 4), actions.reshape(-1)
        b_logprobs, b_advantages = logprobs.reshape(-1), advantages.reshape(-1)
        b_returns = returns.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(NUM_STEPS * NUM_ENVS, device="cuda").split(MINIBATCH):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                        b_obs[rows], b_actions.long()[rows]
                    )
                    ratio = (newlogprob - b_logprobs[rows]).exp()
                    chosen = b_advantages[rows]
                    chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
                    policy_loss = -(chosen * ratio.clamp(0.8, 1.2)).mean()
                    value_loss = (newvalue.view(-1) - b_returns[rows]).pow(2).mean()
                    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
        torch.cuda.synchronize()
        speed = int((iteration + 1) * NUM_STEPS * NUM_ENVS / (time.time() - start))
        print(f"SPS: {speed}, loss: {loss.item()}, peak: {torch.cuda.max_memory_allocated()}")

    path = f"{sys.argv[1]}/agent.pt"
    torch.save(agent.state_dict(), path)
    loaded = Agent(4, 2).cuda()
    loaded.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    assert torch.equal(loaded.get_value(next_obs), agent.get_value(next_obs))
    torch.cuda.empty_cache()
    envs.close()
    DEVICE = next(loaded.parameters()).device
