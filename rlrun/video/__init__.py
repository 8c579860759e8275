"""Pictures of episodes: video files, panels of the agent's outputs, a window."""
