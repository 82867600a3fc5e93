"""What lies between any world and any agent: devices, replay, acting, checkpoints."""
